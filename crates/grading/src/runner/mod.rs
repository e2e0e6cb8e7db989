//! Runs a learner's program on several ranks and collects the results.
//!
//! Every rank is a separate process in a private folder. The store runs in the grader, on a free port. So a crash or a hang of the
//! answer cannot affect the grader. All processes that the ranks start are killed at the end.

mod bounds;
mod call;
mod confine;
mod desync_report;
mod hang_detector;
mod inputs;
mod outcome;
mod printed;
mod task_runner;

pub use bounds::Bounds;
pub use call::CallOptions;
pub(crate) use confine::exec as confined;
pub use confine::{CONFINED, writes_are_confined};
pub use desync_report::{BESIDE, JOINS, SEPARATOR};
pub use hang_detector::COMPUTES;
pub use inputs::Inputs;
pub use outcome::RankOutcome;
pub use task_runner::{Outputs, Runner};
