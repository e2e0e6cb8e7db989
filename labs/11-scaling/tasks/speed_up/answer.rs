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
    // <answer>
    //~ todo!("fit A + B/n, then apply both laws")
    let n = times.len() as f64;
    let sum = |of: fn(f64, f64) -> f64| times.iter().map(|(ranks, time)| of(1.0 / *ranks as f64, *time)).sum::<f64>();
    let (x, xx, y, xy) = (sum(|x, _| x), sum(|x, _| x * x), sum(|_, y| y), sum(|x, y| x * y));
    let shared = (n * xy - x * y) / (n * xx - x * x);
    let stays = (y - shared * x) / n;
    let one = stays + shared;
    let serial = stays / one;
    let (most, time) = times[times.len() - 1];
    let efficiency = one / time / most as f64;
    let ranks = ranks as f64;
    Ok(SpeedUp {
        serial,
        efficiency,
        amdahl: 1.0 / (serial + (1.0 - serial) / ranks),
        gustafson: serial + (1.0 - serial) * ranks,
    })
    // </answer>
}
