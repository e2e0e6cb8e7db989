//! Recordings of runs: reads what `lockstep run --record FILE` and `LOCKSTEP_RECORD=DIR` leave, and finds out who waited for whom.
//!
//! - [`model`]: a [`Replay`], as the page of `lockstep replay` shows it.

pub mod model;

pub use model::Replay;
