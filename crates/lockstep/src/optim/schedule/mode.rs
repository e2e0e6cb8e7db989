//! In which direction a metric improves.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// What counts as better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Less, as for a loss.
    #[default]
    Min,
    /// More, as for an accuracy.
    Max,
}

impl Mode {
    /// Whatever comes first is better.
    pub(super) fn worst(self) -> f64 {
        match self {
            Mode::Min => f64::INFINITY,
            Mode::Max => f64::NEG_INFINITY,
        }
    }
}
