//! A scenario: what to run, what to break in it, and what must be true at the end.
//!
//! The types are the file format: field for field the contents of a TOML file, and the output of [`Scenario::to_toml`].
//! [`parse`] reads one, with errors that name the line; [`check`] finds contradictions.

mod check;
mod fault;
mod fault_action;
mod parse;
mod spec;

pub(crate) use fault::{Fault, When, Who};
pub(crate) use fault_action::{FaultAction, What};
pub(crate) use parse::parse;
pub(crate) use spec::{Disks, Expect, RunSpec, Scenario};
