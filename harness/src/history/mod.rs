//! What happened in a run, read from its event files by everybody who asks.
//!
//! - [`RunEvents`]: the files of all ranks and agents ([`events`]).
//! - [`History`]: the worker processes in them, each one [`Attempt`] of a rank ([`attempts`]).
//! - [`Recovery`]: what each failure cost, and [`Restarts`]: the same of the run as a whole ([`recovery`]).
//!
//! Drawing it is [`report`](crate::report)'s work, judging it [`inject`](crate::inject)'s. Whether an undisturbed run recorded
//! each step that is due is checked by [`Trace`](crate::run::Trace).

mod attempts;
mod events;
mod recovery;
#[cfg(test)]
pub(crate) mod testing;

pub(crate) use attempts::{Attempt, End, Generation, History};
pub(crate) use events::RunEvents;
pub(crate) use recovery::{Recovery, Restarts};
