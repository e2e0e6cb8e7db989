//! What was measured of a job's communication, and what is to be planned. You do not change this file.

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
