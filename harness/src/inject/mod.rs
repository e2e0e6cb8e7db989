//! `lockstep inject`: breaks a training run on purpose, and requires the same result as without the fault.
//!
//! [`options`] selects the scenarios, [`soak`] draws random ones; [`runner`](crate::runner) runs them.

mod options;
mod series;
mod soak;

pub(crate) use options::Options;
