//! What can be wrong with a schedule: its options, its fit to the optimizer, a saved state.

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
        /// What was given.
        value: f64,
        /// The valid range, in words.
        must_be: &'static str,
    },
    /// Several lower bounds of the learning rate, but not one for each parameter group.
    #[error("{bounds} lower bounds (min_lr) for {groups} parameter groups; give one for all, or one for each")]
    Bounds {
        /// How many bounds there are.
        bounds: usize,
        /// How many groups the optimizer has.
        groups: usize,
    },
    /// The saved state has followed a metric in the other direction.
    #[error(
        "the saved state of the schedule is of mode {saved:?}, this run's is {here:?}; go on with the same metric, or start anew"
    )]
    Mode {
        /// The mode of the run that saved.
        saved: Mode,
        /// The mode here.
        here: Mode,
    },
    /// The optimizer refused the new rate.
    #[error("failed to set a learning rate")]
    Optimizer(#[from] OptimError),
}
