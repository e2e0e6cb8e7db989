//! The history of a run, read from its event files, for all commands that need it.
//!
//! - [`RunEvents`]: the files of all ranks and agents ([`events`]).
//! - [`History`]: the worker processes in them, each one an [`Attempt`] of a rank ([`attempts`]).
//! - [`Recovery`]: the cost of each failure, and [`Restarts`]: the same for the run as a whole ([`recovery`]).
//!
//! [`report`](crate::report) draws it, and [`inject`](crate::inject) evaluates it. [`Trace`](crate::lab_run::Trace) checks that an
//! undisturbed run recorded each expected step.

mod attempts;
mod events;
mod recovery;
#[cfg(test)]
pub(crate) mod testing;

pub(crate) use attempts::{Attempt, End, Generation, History};
pub(crate) use events::RunEvents;
pub(crate) use recovery::{Recovery, Restarts};
