//! Where a measure belongs in the tables of scaling, and what is measured there.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::nodes::Span;

pub(super) const STEP: &str = "step";
pub(super) const EXPOSED: &str = "exposed communication";
pub(super) const ALONE: &str = "all-reduces alone";
pub(super) const ONE: &str = "one all-reduce";
pub(super) const BUCKET: &str = "its bytes";

/// What grows with the number of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(super) enum Mode {
    /// Nothing: the same samples are shared by more ranks
    Strong,
    /// The samples: each rank has as many
    Weak,
}

/// Where a measure belongs in the tables of scaling.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Place {
    pub(super) mode: Mode,
    pub(super) model: String,
    pub(super) ranks: usize,
    /// In a Slurm job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) span: Option<Span>,
}

impl Mode {
    pub(super) fn name(self) -> &'static str {
        match self {
            Mode::Strong => "strong",
            Mode::Weak => "weak",
        }
    }
}
