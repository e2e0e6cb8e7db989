//! Task 1: α, β and the size of a bucket.
//!
//! An all-reduce of n bytes takes about α + β·n. Measured times are off by a few percent, and one size does not fit the model: the library
//! uses a different algorithm for it, or its message is just too large for a buffer.
//!
//! DDP sends a bucket while the backward pass fills the next. If sending takes no longer than filling, the step waits only for the last
//! bucket: a bucket of b bytes is hidden if α + β·b ≤ b · backward / gradients. The bucket may be larger than all gradients together.

use anyhow::Result;
use serde::{Deserialize, Serialize};

/// What was measured.
#[derive(Clone, Debug, Deserialize)]
pub struct Measured {
    /// All-reduces of several sizes: bytes, and microseconds.
    pub times: Vec<(f64, f64)>,
    /// The bytes of all gradients.
    pub gradients: f64,
    /// Microseconds of the backward pass without communication; gradients come at an even rate.
    pub backward: f64,
}

/// The model of the times, and what follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// Microseconds for an empty message.
    pub alpha: f64,
    /// Microseconds per byte.
    pub beta: f64,
    /// The bytes of the smallest bucket that the backward pass hides; `None` if it hides none.
    pub bucket: Option<f64>,
}

/// Fits α and β to the times (within a tenth of the true ones), and returns the smallest bucket that the backward pass hides.
pub fn alpha_beta(measured: &Measured) -> Result<Plan> {
    // <answer>
    //~ todo!("fit the line, without the size that is off, then compare sending and filling a bucket")
    // The line with the least squares of relative errors.
    let fit = |times: &[(f64, f64)]| {
        let sum = |of: fn(f64, f64) -> f64| times.iter().map(|(bytes, time)| of(*bytes, *time)).sum::<f64>();
        let (aa, ab, bb) = (sum(|_, t| 1.0 / (t * t)), sum(|n, t| n / (t * t)), sum(|n, t| n * n / (t * t)));
        let (ay, by) = (sum(|_, t| 1.0 / t), sum(|n, t| n / t));
        let determinant = aa * bb - ab * ab;
        ((ay * bb - by * ab) / determinant, (by * aa - ay * ab) / determinant)
    };
    let (alpha, beta) = fit(&measured.times);
    let error = |(bytes, time): &(f64, f64)| ((alpha + beta * bytes) / time - 1.0).abs();
    let worst = measured.times.iter().map(error).fold(0.0, f64::max);
    let others: Vec<(f64, f64)> = measured.times.iter().filter(|sample| error(sample) < worst).copied().collect();
    let (alpha, beta) = fit(&others);
    // What a bucket gains on its message with each byte.
    let gain = measured.backward / measured.gradients - beta;
    Ok(Plan { alpha, beta, bucket: (gain > 0.0).then(|| alpha / gain) })
    // </answer>
}
