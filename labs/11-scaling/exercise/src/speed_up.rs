//! Task 8: Amdahl and Gustafson.
//!
//! The time of a run on n ranks is about A + B/n: what more ranks do not shorten, and what they share. Fit A and B, and both laws
//! follow. The model may not fit on one rank, so the smallest measured number need not be 1.

use anyhow::Result;

use crate::speed::SpeedUp;

/// What follows from `times`, of (ranks, seconds) for the same work, sorted, and what both laws predict for `ranks` ranks.
pub fn speed_up(times: &[(usize, f64)], ranks: usize) -> Result<SpeedUp> {
    todo!("fit A + B/n, then apply both laws")
}
