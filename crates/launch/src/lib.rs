//! The elastic agent behind `lockstep run`: workers, restarts, rendezvous, logs. It links no libtorch.
//! Worker processes themselves are `lockstep_process`'.
//!
//! - [`config`]: what is to be run, as torchrun's flags say it, and the environment of each worker.
//! - [`output`]: what workers print: whole lines to console and files.
//! - [`report`]: how workers failed, and the final report.
//! - [`rendezvous`]: how agents agree on who takes part.
//! - [`diagnose`]: what to tell when they do not.
//! - [`status`]: what the running job looks like, in one line.

pub mod agent;
pub mod config;
pub mod diagnose;
pub mod output;
pub mod rendezvous;
pub mod report;
pub mod status;
