//! Task 8: Amdahl and Gustafson.
//!
//! The time of a run on n ranks is about A + B/n: A is the time that more ranks do not shorten, B the work that they share. Fit A and B,
//! and both laws follow. The model may not fit on one rank, so the smallest measured number need not be 1.

use anyhow::Result;
use serde::Serialize;

/// What follows from the times of the same work on more and more ranks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SpeedUp {
    /// The share of one rank's time that more ranks do not shorten, from 0 to 1.
    pub serial: f64,
    /// The speed-up over one rank on the most ranks that were measured, divided by their number.
    pub efficiency: f64,
    /// The speed-up that Amdahl's law predicts: the work stays the same.
    pub amdahl: f64,
    /// The speed-up that Gustafson's law predicts: each rank has as much work to share as one rank had.
    pub gustafson: f64,
}

/// Fits the model to `times`, (ranks, seconds) for the same work, sorted. Returns what follows from it, and what both laws predict for
/// `ranks` ranks.
pub fn speed_up(times: &[(usize, f64)], ranks: usize) -> Result<SpeedUp> {
    todo!("fit A + B/n, then apply both laws")
}
