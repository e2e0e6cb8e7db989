//! The command from outside, as users meet it: `lockstep run` with real agents, workers and signals, the learner's commands, and
//! every page of help. What people read is compared with insta's snapshots (`shown.rs` says what is filtered out of them).

#![allow(clippy::unwrap_used)] // a test may

mod help;
mod learn;
mod render;
mod run;
mod run_usage;
mod running;
mod shown;
