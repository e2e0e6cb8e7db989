//! Answers to `speed_up`: wrong ones, and an unusual right one.

use anyhow::Result;

use crate::speed_up::SpeedUp;

type Times = [(usize, f64)];

/// A and B of A + B/n.
fn fit(times: &Times) -> (f64, f64) {
    let n = times.len() as f64;
    let sum = |of: fn(f64, f64) -> f64| times.iter().map(|(ranks, time)| of(1.0 / *ranks as f64, *time)).sum::<f64>();
    let (x, xx, y, xy) = (sum(|x, _| x), sum(|x, _| x * x), sum(|_, y| y), sum(|x, y| x * y));
    let shared = (n * xy - x * y) / (n * xx - x * x);
    ((y - shared * x) / n, shared)
}

fn of(times: &Times, ranks: usize, (stays, shared): (f64, f64)) -> SpeedUp {
    let (one, (most, time)) = (stays + shared, times[times.len() - 1]);
    with(stays / one, one / time / most as f64, ranks)
}

fn with(serial: f64, efficiency: f64, ranks: usize) -> SpeedUp {
    let ranks = ranks as f64;
    SpeedUp {
        serial,
        efficiency,
        amdahl: 1.0 / (serial + (1.0 - serial) / ranks),
        gustafson: serial + (1.0 - serial) * ranks,
    }
}

/// Returns 1 minus the efficiency as the serial share.
pub fn lost_efficiency(times: &Times, ranks: usize) -> Result<SpeedUp> {
    let right = of(times, ranks, fit(times));
    Ok(with(1.0 - right.efficiency, right.efficiency, ranks))
}

/// Treats the first time as one rank's time.
pub fn first_is_one(times: &Times, ranks: usize) -> Result<SpeedUp> {
    let (first, (most, time)) = (times[0].1, times[times.len() - 1]);
    let speed = first / time;
    let serial = (1.0 / speed - 1.0 / most as f64) / (1.0 - 1.0 / most as f64);
    Ok(with(serial, speed / most as f64, ranks))
}

/// Returns A as the share.
pub fn seconds(times: &Times, ranks: usize) -> Result<SpeedUp> {
    let (stays, shared) = fit(times);
    Ok(with(stays, of(times, ranks, (stays, shared)).efficiency, ranks))
}

/// Swaps the laws.
pub fn swapped(times: &Times, ranks: usize) -> Result<SpeedUp> {
    let right = of(times, ranks, fit(times));
    Ok(SpeedUp { amdahl: right.gustafson, gustafson: right.amdahl, ..right })
}

/// Expects that the efficiency stays as it is.
pub fn same_efficiency(times: &Times, ranks: usize) -> Result<SpeedUp> {
    let right = of(times, ranks, fit(times));
    Ok(SpeedUp { amdahl: right.efficiency * ranks as f64, ..right })
}

/// Forgets that efficiency is for one rank.
pub fn speed_as_efficiency(times: &Times, ranks: usize) -> Result<SpeedUp> {
    let right = of(times, ranks, fit(times));
    Ok(SpeedUp { efficiency: right.efficiency * times[times.len() - 1].0 as f64, ..right })
}

/// Right: from the first and the last time alone.
pub fn two_points(times: &Times, ranks: usize) -> Result<SpeedUp> {
    let ((few, long), (many, short)) = (times[0], times[times.len() - 1]);
    let shared = (long - short) / (1.0 / few as f64 - 1.0 / many as f64);
    Ok(of(times, ranks, (short - shared / many as f64, shared)))
}
