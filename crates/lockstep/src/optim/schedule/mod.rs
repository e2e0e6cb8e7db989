//! Learning-rate schedules: [`ReduceLrOnPlateau`], which follows a metric, and [`Warmup`], which follows the step.
//!
//! Both call [`Optimizer::set_group_lr`](super::Optimizer::set_group_lr), whose rates a snapshot saves with the optimizer. A
//! schedule's own state is a value to save next to it ([`PlateauState`]), or nothing at all ([`Warmup`] is a function of the
//! step).
//!
//! Leaves out PyTorch's other schedulers, and its chaining of several.

mod error;
mod mode;
mod plateau;
mod warmup;

pub use error::ScheduleError;
pub use mode::Mode;
pub use plateau::{PlateauOptions, PlateauState, ReduceLrOnPlateau, Reduced, ThresholdMode};
pub use warmup::Warmup;
