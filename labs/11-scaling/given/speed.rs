//! What follows from the times of a run on several numbers of ranks. You do not change this file.

use serde::Serialize;

/// Of the same work on more and more ranks.
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
