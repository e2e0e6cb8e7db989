//! `lockstep run`: starts a program once per rank, supervises it, and restarts it when a rank fails.
//!
//! The command line is torchrun's. [`crate::config`] interprets its flags, and [`crate::agent`] runs the job.

mod completion;
mod exec;
mod look_alikes;
mod options;

pub use completion::Shell;
pub use exec::{quoted, torchrun};
pub use look_alikes::{LookAlike, LookAlikeKind, parse};
pub use options::RunOptions;
