//! What a launcher and its workers say to each other, beside torchrun's variables and the event files.
//!
//! - [`desync_report`]: where ranks say that they are, after a failure or in a hang.
//! - [`error_file`]: what a failing worker leaves behind for whoever started it.
//! - [`exercise`]: what a grader asks of the ranks of a learner's program, and what they answer.
//! - [`CLEARED_VARIABLES`]: what another launcher may have set, and whoever starts ranks without one clears.
//! - [`fault`]: faults that a worker inflicts on itself at an exact point, on request.
//!
//! A crate of its own, without libtorch: the runtime and the launcher share these formats and nothing else.

mod cleared;
pub mod desync_report;
pub mod error_file;
pub mod exercise;
pub mod fault;

pub use cleared::{CLEARED_VARIABLES, clear_launcher};
