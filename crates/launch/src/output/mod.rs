//! What workers print: whole lines to console and files.
//!
//! - [`Outputs`] takes in what the workers of one attempt print, as each one's [`Plan`] says, and keeps the last lines.
//! - [`Console`] is where it is shown: one thread a device writes, so that lines never mix.
//!
//! Reading and writing happen in threads of their own: a slow console or file system stalls neither the agent's loop nor
//! the news of a death. Of each worker and stream at most 256 KiB and a line wait for the console; then the worker itself
//! waits, and no other. A console that is gone stops nothing: files go on.
//!
//! One worker alone on the console, without a prefix, is passed through byte for byte. Of several, whole lines are
//! shown; of a progress bar (text that ends in a carriage return) only the last state. Files get every byte as it is.
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
//! let last_words = outputs.tail(1, Stream::Stderr);
//! # Ok(())
//! # }
//! ```

mod console;
mod lane;
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
