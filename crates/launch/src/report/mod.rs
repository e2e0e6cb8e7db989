//! How workers failed, which failure came first, and the final report in torchrun's form.
//!
//! The agent tells each [`Death`] in the kernel's order; [`Failure::of`] adds what the worker left in its error file, and
//! [`Report::new`] finds the root cause and separates who died by itself from whom the agent stopped. The report's
//! `Display` is what torchrun's users and their scripts look for; [`hand_up`] passes the root cause on to whoever
//! started the agent. Nothing here decides whether to restart.

mod failure;
mod render;
mod root;
mod text;
mod up;

pub use failure::{Death, Failure, Told};
pub use root::Report;
pub use up::{hand_up, hand_up_error};
