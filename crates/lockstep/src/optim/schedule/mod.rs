//! Learning-rate schedules: [`ReduceLrOnPlateau`], which follows a metric, and [`Warmup`], which follows the step.
//!
//! Both work through [`Optimizer::set_group_lr`](super::Optimizer::set_group_lr), whose rates a snapshot saves with the optimizer.
//! What a schedule itself must remember is a value to be saved beside it ([`PlateauState`]), or nothing at all ([`Warmup`] is a
//! function of the step).
//!
//! Left out: PyTorch's other schedulers, and its chaining of one after the other.

mod error;
mod mode;
mod plateau;
mod warmup;

pub use error::ScheduleError;
pub use mode::Mode;
pub use plateau::{PlateauOptions, PlateauState, ReduceLrOnPlateau, Reduced, ThresholdMode};
pub use warmup::Warmup;
