//! The command from outside, as users see it: `lockstep run` with real agents, workers and signals, the learner's commands, and
//! every help page. Texts for people are insta snapshots (`shown.rs` lists the filters).

#![allow(clippy::unwrap_used)] // a test may

mod bench;
mod class;
mod cluster;
mod data;
mod doctor;
mod features;
mod help;
mod hostile;
mod learn;
mod render;
mod replay;
mod report;
mod running;
mod scripts;
mod shown;
mod sites;

// The launcher's own tests are kept with the launcher. They start the `lockstep` command, so they are built here.
#[path = "../../../engine/launch/tests/command/run/mod.rs"]
mod run;
#[path = "../../../engine/launch/tests/command/run_usage.rs"]
mod run_usage;
#[path = "../../../engine/launch/tests/command/verdict/mod.rs"]
mod verdict;
