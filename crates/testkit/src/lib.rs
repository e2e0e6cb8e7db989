//! Support for tests, without libtorch: jobs in private folders, whose ranks are started directly and restarted after a fault, as a
//! launcher would do; and comparisons with Python's PyTorch.
//!
//! System errors are panics, as usual in tests. Not here: launchers, and the promises of each lab.

#![allow(clippy::unwrap_used, clippy::missing_panics_doc)] // only for tests

mod job;
pub mod margin;
pub mod python;

pub use job::{Attempt, Job, Running, kill, undisturbed, while_saving};
pub use lockstep_contract::clear_launcher;
pub use lockstep_process::KillOnDrop;
