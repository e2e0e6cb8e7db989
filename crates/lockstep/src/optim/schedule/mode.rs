//! The direction in which a metric improves.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// What counts as better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Lower is better, as for a loss.
    #[default]
    Min,
    /// Higher is better, as for an accuracy.
    Max,
}

impl Mode {
    /// The initial value, which any metric improves on.
    pub(super) fn worst(self) -> f64 {
        match self {
            Mode::Min => f64::INFINITY,
            Mode::Max => f64::NEG_INFINITY,
        }
    }
}
