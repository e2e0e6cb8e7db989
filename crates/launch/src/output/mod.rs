//! The workers' output: complete lines to console and files.
//!
//! - [`Outputs`] reads what the workers of one attempt print, according to each one's [`Plan`], and keeps the last
//!   lines.
//! - [`Console`] shows it: one thread per device writes, so that lines never mix.
//!
//! Reading and writing happen in separate threads: a slow console or file system delays neither the agent's loop nor
//! the detection of a death. For each worker and stream at most 256 KiB and a line wait for the console; after that
//! only this worker waits. If the console is gone, nothing stops: files are still written.
//!
//! If only one worker is on the console, without a prefix, its output passes through byte for byte, and its two streams in
//! their order if they share a device. With several workers, complete lines are shown; of a progress bar (text that ends
//! in a carriage return) only the last state. A line that does not end is shown as it is when the worker pauses, on a
//! terminal without a status line, and every half minute in a file or a pipe. Files get every byte unchanged.
//!
//! ```no_run
//! # use std::time::Duration;
//! # use lockstep_launch::output::{Console, Outputs, Plan, Prefix, Stream, StreamPlan};
//! # use lockstep_process::{Sink, Spec, Workers};
//! # async fn attempt(workers: &mut Workers, spec: impl Fn(usize, Sink, Sink) -> Spec) -> std::io::Result<()> {
//! let console = Console::of_this_process()?;
//! let shown = |local_rank: usize| StreamPlan {
//!     console: true,
//!     prefix: Prefix::Always(format!("[default{local_rank}]:")),
//!     ..StreamPlan::default()
//! };
//! let plans = (0..2).map(|rank| Plan { stdout: shown(rank), stderr: shown(rank) }).collect();
//! let (mut outputs, sinks) = Outputs::open(&console, plans)?;
//! for (rank, (stdout, stderr)) in sinks.into_iter().enumerate() {
//!     workers.start(rank, spec(rank, stdout, stderr))?;
//! }
//! // … deaths, sweep …
//! outputs.finish(Duration::from_millis(500)).await;
//! let last_lines = outputs.tail(1, Stream::Stderr);
//! # Ok(())
//! # }
//! ```

mod console;
mod line_multiplexer;
mod lines;
mod outputs;
mod plan;
mod reader;
mod source;
mod tail;

pub use console::Console;
pub use outputs::Outputs;
pub use plan::{Plan, Prefix, Stream, StreamPlan};
pub use reader::Finished;
