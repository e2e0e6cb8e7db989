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
    todo!("fit the line, without the size that is off, then compare sending and filling a bucket")
}
