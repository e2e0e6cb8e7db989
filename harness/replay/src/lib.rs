//! Recordings of runs: reads what `lockstep run --record FILE` and `LOCKSTEP_RECORD=DIR` leave, and finds out who waited for whom.
//!
//! - [`model`]: a [`Replay`], as the page of `lockstep replay` shows it.
//! - [`mod@read`]: lines to lanes, in spite of damage.
//! - [`analysis`]: calls of one rank matched with those of the others; waits, differing calls, and who stood still first.

pub mod analysis;
pub mod model;
pub mod read;
#[cfg(test)]
mod testing;

pub use analysis::analyse;
pub use model::Replay;
pub use read::{ReadError, read};
