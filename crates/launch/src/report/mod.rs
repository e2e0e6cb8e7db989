//! How workers failed, which failure came first, and the final report in torchrun's format.
//!
//! The agent reports each [`Death`] in the kernel's order; [`Failure::of`] adds the contents of the worker's error
//! file, and [`Report::new`] finds the root cause and separates workers that failed on their own from those that the
//! agent stopped. The report's first line is the [`Verdict`](crate::verdict::Verdict); then its `Display` has the format that
//! torchrun's users and their scripts expect. [`propagate_error`] passes the root cause to the process that started the agent. This
//! module does not decide about restarts.

mod failure;
mod propagate_error;
mod render;
mod root;
mod text;

pub(crate) use failure::describe_exit;
#[cfg(test)]
pub(crate) use failure::tests as testing;
pub use failure::{Death, Failure, Reason};
pub use propagate_error::{propagate_agent_error, propagate_error};
pub use root::Report;
pub(crate) use root::first_failure;
