#![doc = include_str!("../README.md")]
//!
//! # Modules
//!
//! Worker processes themselves are those of [`lockstep_process`].
//!
//! - [`command`]: the command line, and a launcher's `main`; [`exit`]: the exit codes.
//! - [`agent`]: runs a job on this node.
//! - [`config`]: the job's configuration, from torchrun's flags, and the environment of each worker.
//! - [`output`]: the workers' output: complete lines to console and files.
//! - [`report`]: how workers failed, and the final report.
//! - [`verdict`]: who is at fault for a failure, and why.
//! - [`rendezvous`]: how agents agree on the members of a job.
//! - [`diagnose`]: explanations when they do not.
//! - [`scheduler`]: what Slurm, PBS, MPI's launcher or a host file says of the job.
//! - [`status`]: the state of the running job, in one line.

#![warn(missing_docs)] // people read its documentation without the source
#![allow(rustdoc::private_intra_doc_links)] // the modules' documentation is also for those who change them

pub mod agent;
pub mod command;
pub mod config;
pub mod diagnose;
pub mod exit;
pub mod output;
pub mod rendezvous;
pub mod report;
pub mod scheduler;
pub mod status;
pub mod verdict;
