//! Recordings of runs: reads what `lockstep run --record FILE` and `LOCKSTEP_RECORD=DIR` leave, finds out who waited for whom, and shows it.
//!
//! - [`model`]: a [`Replay`], as the page of `lockstep replay` shows it.
//! - [`mod@read`]: files to lines, in spite of damage; `lanes`: lines to lanes; `flight_recorder`: the same from PyTorch's files.
//! - [`analysis`]: calls of one rank matched with those of the others; waits, differing calls, and who stood still first.
//! - [`ReplayOptions`]: `lockstep replay`; `page`: the page that it writes.

#![warn(clippy::print_stdout, clippy::print_stderr)] // they panic where the reader has gone: `report::Screen` prints

pub mod analysis;
mod command;
mod flight_recorder;
mod lanes;
pub mod model;
mod page;
pub mod read;
#[cfg(test)]
mod testing;

use lockstep_report as report;

pub use analysis::analyse;
pub use command::ReplayOptions;
pub use model::Replay;
pub use read::{ReadError, read};
