//! Errors of a schedule: its options, its fit to the optimizer, or a saved state.

use super::mode::Mode;
use crate::optim::OptimError;

/// Why a schedule refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// An option is out of range.
    #[error("invalid {option} for {schedule}: {value}; it must be {must_be}")]
    Option {
        /// The schedule's name.
        schedule: &'static str,
        /// The option's name.
        option: &'static str,
        /// The given value.
        value: f64,
        /// The valid range, as text.
        must_be: &'static str,
    },
    /// There are several lower bounds of the learning rate, but not one for each parameter group.
    #[error("{bounds} lower bounds (min_lr) for {groups} parameter groups; give one for all, or one for each")]
    Bounds {
        /// The number of bounds.
        bounds: usize,
        /// The number of groups of the optimizer.
        groups: usize,
    },
    /// The saved state followed a metric in the other direction.
    #[error(
        "the saved state of the schedule is of mode {saved:?}, this run's is {here:?}; continue with the same metric, or start over"
    )]
    Mode {
        /// The mode of the saved run.
        saved: Mode,
        /// The mode of this run.
        here: Mode,
    },
    /// The optimizer rejected the new rate.
    #[error("failed to set a learning rate")]
    Optimizer(#[from] OptimError),
}
