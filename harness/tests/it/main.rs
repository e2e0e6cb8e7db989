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
mod run;
mod run_usage;
mod running;
mod scripts;
mod shown;
mod sites;
mod verdict;
