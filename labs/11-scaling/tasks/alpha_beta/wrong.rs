//! Answers to `alpha_beta`: wrong ones, and an unusual right one.

use anyhow::Result;
use lockstep_answers::edit;

use crate::alpha_beta::{Measured, Plan};

type Times = [(f64, f64)];

fn fit(times: &Times, weight: fn(f64) -> f64) -> (f64, f64) {
    let sum = |of: fn(f64, f64) -> f64| times.iter().map(|(n, t)| weight(*t) * of(*n, *t)).sum::<f64>();
    let (one, n, nn) = (sum(|_, _| 1.0), sum(|n, _| n), sum(|n, _| n * n));
    let (t, nt) = (sum(|_, t| t), sum(|n, t| n * t));
    let determinant = one * nn - n * n;
    ((t * nn - nt * n) / determinant, (nt * one - t * n) / determinant)
}

fn plan(measured: &Measured, (alpha, beta): (f64, f64)) -> Plan {
    let gain = measured.backward / measured.gradients - beta;
    Plan { alpha, beta, bucket: (gain > 0.0).then(|| alpha / gain) }
}

/// Fits absolute errors, so that only the longest messages count.
pub fn absolute(measured: &Measured) -> Result<Plan> {
    Ok(plan(measured, fit(&measured.times, |_| 1.0)))
}

/// Keeps the size at which the model does not hold.
#[edit(let (alpha, beta) = fit(&others); => )]
pub fn all_sizes() {}

/// Draws the line through the first and the last time.
pub fn two_points(measured: &Measured) -> Result<Plan> {
    let times = &measured.times;
    let ((few, short), (many, long)) = (times[0], times[times.len() - 1]);
    let beta = (long - short) / (many - few);
    Ok(plan(measured, (short - beta * few, beta)))
}

/// Takes the size at which transfer takes as long as latency.
#[edit((gain > 0.0).then(|| alpha / gain) => Some(alpha / beta))]
pub fn half_size() {}

/// Forgets that bytes take time, too.
#[edit((gain > 0.0).then(|| alpha / gain) => Some(alpha * measured.gradients / measured.backward))]
pub fn free_bytes() {}

/// Names a bucket even if none is hidden.
#[edit((gain > 0.0).then(|| alpha / gain) => (gain > 0.0).then(|| alpha / gain).or(Some(measured.gradients)))]
pub fn always() {}

/// Names no bucket that is larger than all gradients.
#[edit((gain > 0.0).then(|| alpha / gain) => (gain > 0.0).then(|| alpha / gain).filter(|bytes| *bytes <= measured.gradients))]
pub fn no_more_than_there_is() {}

/// Names at most a bucket of all gradients.
#[edit((gain > 0.0).then(|| alpha / gain) => (gain > 0.0).then(|| measured.gradients.min(alpha / gain)))]
pub fn all_at_most() {}

/// Right: medians instead of least squares.
pub fn median_of_slopes(measured: &Measured) -> Result<Plan> {
    let median = |mut numbers: Vec<f64>| {
        numbers.sort_by(f64::total_cmp);
        numbers[numbers.len() / 2]
    };
    let largest = measured.times.iter().map(|(bytes, _)| *bytes).fold(0.0, f64::max);
    // Up to 64 B, where bytes take no time on any of the networks.
    let small = measured.times.iter().filter(|(bytes, _)| *bytes < largest / 5e5);
    let alpha = median(small.map(|(_, time)| *time).collect());
    let large = measured.times.iter().filter(|(bytes, _)| *bytes > largest / 100.0);
    let beta = median(large.map(|(bytes, time)| (time - alpha) / bytes).collect());
    Ok(plan(measured, (alpha, beta)))
}
