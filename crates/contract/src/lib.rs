#![doc = include_str!("../README.md")]
//!
//! # Modules
//!
//! - [`background`]: threads of a rank that run whatever it does.
//! - [`mod@bench`]: what `lockstep bench` asks of its ranks, and what they answer.
//! - [`error_file`]: the file that a failing worker writes for the process that started it.
//! - [`exercise`]: the request of a grader to the ranks of a learner's program, and their answers.
//! - [`exit`]: the exit codes of both.
//! - [`CLEARED_VARIABLES`]: environment variables that other launchers may have set.
//! - [`scheduler`]: what Slurm, PBS and MPI's launchers say of a job.
//! - [`wish`]: the signals that ask for a snapshot, and the exit code of a program that has saved one and ended.
//! - [`fault`]: faults that a worker injects into itself at an exact point, on request.
//! - [`foreign`]: text that others wrote, within lines of our own.
//!
//! This is a separate crate, without libtorch, because the runtime and the launcher share these formats and nothing
//! else.

pub mod background;
pub mod bench;
mod cleared;
pub mod desync_report;
pub mod error_file;
pub mod exercise;
pub mod exit;
pub mod fault;
pub mod foreign;
pub mod scheduler;
pub mod wish;

/// 1: ranks use deterministic kernels only, so that a run can be compared bit by bit on a GPU, too. An empty value or 0: any.
pub const DETERMINISTIC: &str = "LOCKSTEP_DETERMINISTIC";
/// What cuBLAS needs for that, and the value that takes the most memory (24 MiB).
pub const CUBLAS_WORKSPACE: (&str, &str) = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8");

/// Names what carries the collectives of tensors in host memory: one of [`BACKENDS`]. An empty value counts as none.
pub const BACKEND: &str = "LOCKSTEP_BACKEND";
/// Shared memory if possible and Gloo otherwise; Gloo; shared memory.
pub const BACKENDS: [&str; 3] = ["auto", "gloo", "shm"];

pub use cleared::{CLEARED_VARIABLES, clear_launcher};
