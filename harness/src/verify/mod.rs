//! `lockstep verify`: runs the labs and checks what they promise.
//!
//! [`checks`](crate::checks) has the checks; [`runner`](crate::runner) starts a run, supervises it, and looks for leaks.
//! [`labs`] defines the runs of each lab, [`series`] does them.

mod labs;
mod nodes;
mod options;
mod scaling;
mod series;

pub(crate) use options::Options;
