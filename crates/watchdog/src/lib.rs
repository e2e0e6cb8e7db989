//! Deadlines that do not depend on the machine's speed or load: a wait ends when the processes that it waits for stop
//! making progress.
//!
//! A deadline in seconds assumes a speed. On a busy machine it ends work that would have succeeded, and on a fast one
//! it lets a hang last for minutes. CPU time distinguishes a hang from slow work: a process that computes gets some,
//! however little, and one that waits for a message gets none. So [`Watchdog`] reads from `/proc` how much CPU time the
//! processes of a test have used, and gives up when they used almost none for a minute. [`StallDetector`] applies the
//! same rule to any processes. Where a deadline in seconds is required, [`scaled`] makes it longer on a busy machine,
//! and [`Queue`] measures how much time processes spent waiting for a core.
//!
//! It does not cover processes on other machines.

mod load;
mod proc;
mod queue;
mod stall_detector;
mod waits;
mod watchdog;

pub use load::scaled;
pub use proc::{Awake, descendants, threads, threads_except};
pub use queue::Queue;
pub use stall_detector::StallDetector;
pub use waits::{drain, output, receive, until};
pub use watchdog::{InVain, Watchdog};
