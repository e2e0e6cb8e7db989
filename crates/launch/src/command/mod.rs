//! `lockstep run`: starts a program once per rank, supervises it, and restarts it when a rank fails.
//!
//! The command line is torchrun's. [`crate::config`] interprets its flags, and [`crate::agent`] runs the job.

mod exec;
mod options;
mod plan;
mod program;
mod torchrun;

pub use options::Options;
pub use plan::quoted;
pub use program::{PROGRAM, become_program, main};
pub use torchrun::torchrun;
