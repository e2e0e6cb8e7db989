//! Answers to `alpha_beta`: wrong ones, and an unusual right one.

use anyhow::Result;

use crate::alpha_beta::{Measured, Plan};

type Times = [(f64, f64)];

fn fit(times: &Times, weight: fn(f64) -> f64) -> (f64, f64) {
    let sum = |of: fn(f64, f64) -> f64| times.iter().map(|(n, t)| weight(*t) * of(*n, *t)).sum::<f64>();
    let (one, n, nn) = (sum(|_, _| 1.0), sum(|n, _| n), sum(|n, _| n * n));
    let (t, nt) = (sum(|_, t| t), sum(|n, t| n * t));
    let determinant = one * nn - n * n;
    ((t * nn - nt * n) / determinant, (nt * one - t * n) / determinant)
}

fn relative(times: &Times) -> (f64, f64) {
    fit(times, |time| 1.0 / (time * time))
}

fn without_worst(times: &Times) -> (f64, f64) {
    let (alpha, beta) = relative(times);
    let error = |(bytes, time): &(f64, f64)| ((alpha + beta * bytes) / time - 1.0).abs();
    let worst = times.iter().map(error).fold(0.0, f64::max);
    relative(&times.iter().filter(|sample| error(sample) < worst).copied().collect::<Vec<_>>())
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
pub fn all_sizes(measured: &Measured) -> Result<Plan> {
    Ok(plan(measured, relative(&measured.times)))
}

/// Draws the line through the first and the last time.
pub fn two_points(measured: &Measured) -> Result<Plan> {
    let times = &measured.times;
    let ((few, short), (many, long)) = (times[0], times[times.len() - 1]);
    let beta = (long - short) / (many - few);
    Ok(plan(measured, (short - beta * few, beta)))
}

/// Takes the size at which transfer takes as long as latency.
pub fn half_size(measured: &Measured) -> Result<Plan> {
    let (alpha, beta) = without_worst(&measured.times);
    Ok(Plan { bucket: Some(alpha / beta), ..plan(measured, (alpha, beta)) })
}

/// Forgets that bytes take time, too.
pub fn free_bytes(measured: &Measured) -> Result<Plan> {
    let (alpha, beta) = without_worst(&measured.times);
    Ok(Plan { bucket: Some(alpha * measured.gradients / measured.backward), ..plan(measured, (alpha, beta)) })
}

/// Names a bucket even if none is hidden.
pub fn always(measured: &Measured) -> Result<Plan> {
    let (alpha, beta) = without_worst(&measured.times);
    let found = plan(measured, (alpha, beta));
    Ok(Plan { bucket: found.bucket.or(Some(measured.gradients)), ..found })
}

/// Names no bucket that is larger than all gradients.
pub fn no_more_than_there_is(measured: &Measured) -> Result<Plan> {
    let found = plan(measured, without_worst(&measured.times));
    Ok(Plan { bucket: found.bucket.filter(|bytes| *bytes <= measured.gradients), ..found })
}

/// Names at most a bucket of all gradients.
pub fn all_at_most(measured: &Measured) -> Result<Plan> {
    let found = plan(measured, without_worst(&measured.times));
    Ok(Plan { bucket: found.bucket.map(|bytes| bytes.min(measured.gradients)), ..found })
}

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
