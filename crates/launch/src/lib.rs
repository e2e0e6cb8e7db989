//! The elastic agent behind `lockstep run`: workers, restarts, rendezvous, logs. It links no libtorch.
//! Worker processes themselves are `lockstep_process`'.
//!
//! - [`command`]: `lockstep run`: its command line, its exit codes ([`exit`]), and the program that it becomes.
//! - [`config`]: the job's configuration, from torchrun's flags, and the environment of each worker.
//! - [`process`]: worker processes: started tied to the agent's life, watched by the kernel, ended with all their children.
//! - [`output`]: the workers' output: complete lines to console and files.
//! - [`report`]: how workers failed, and the final report.
//! - [`verdict`]: who is at fault for a failure, and why.
//! - [`rendezvous`]: how agents agree on the members of a job.
//! - [`scheduler`]: what Slurm, PBS, MPI's launcher or a host file says of the job.
//! - [`diagnose`]: explanations when they do not.
//! - [`status`]: the state of the running job, in one line.

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
