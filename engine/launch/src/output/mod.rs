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
mod lines;
mod source;

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lockstep_process::Sink;
use source::{Reader, Shared, Source, of_file, open_log, tail_of};
use tokio::sync::oneshot;

pub use console::Console;
pub use lines::Stream;
pub use source::{Finished, Plan, Prefix, StreamPlan};

/// Reads the output of the workers of one attempt, by local rank. Dropping it stops reading.
pub struct Outputs {
    plans: Vec<Plan>,
    together: bool,
    shared: Arc<Shared>,
    wake: Arc<UnixStream>,
    done: Option<oneshot::Receiver<Finished>>,
    finished: Finished,
    thread: Option<JoinHandle<()>>,
}

impl Outputs {
    /// Opens the files that the plans name, one plan per local rank, and starts to read. Also returns the standard
    /// output and error of each worker, for its [`Spec`](lockstep_process::Spec).
    ///
    /// # Errors
    /// When a file cannot be opened, with its name.
    pub fn open(console: &Console, plans: Vec<Plan>) -> io::Result<(Self, Vec<(Sink, Sink)>)> {
        let (raw, mut together) = (is_alone(&plans), false);
        let mut sources = vec![];
        let mut sinks = vec![];
        for (local_rank, plan) in plans.iter().enumerate() {
            let pipe = |stream, plan: &StreamPlan| {
                let (read, write) = io::pipe()?;
                sources.push(Source::open(local_rank, stream, plan.clone(), raw, read, console)?);
                Ok(OwnedFd::from(write))
            };
            together = raw && console.is_one_device() && plan.is_console_alone();
            sinks.push(sinks_of(plan, together, pipe)?);
        }
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        let (wake, shared) = (Arc::new(wake), Arc::<Shared>::default());
        shared.lock().tails.resize_with(plans.len(), Default::default);
        let reader =
            Reader { sources, console: console.clone(), shared: Arc::clone(&shared), wake: Arc::clone(&wake), woken };
        let (tell, done) = oneshot::channel();
        let run = move || {
            // The receiver may be gone.
            let _ = tell.send(reader.run());
        };
        let thread = Some(thread::Builder::new().name("output".into()).spawn(run)?);
        let (done, finished) = (Some(done), Finished::default());
        let outputs = Outputs { plans, together, shared, wake, done, finished, thread };
        Ok((outputs, sinks))
    }

    /// The last 200 lines of a stream, at most 16 KiB, as text. A line that has not ended is included after
    /// [`Self::finish`]. A single worker's two streams on one device are kept together, as those of its standard error.
    pub fn tail(&self, local_rank: usize, stream: Stream) -> Vec<String> {
        let Some(plan) = self.plans.get(local_rank) else { return vec![] };
        let plan = match stream {
            Stream::Stdout => &plan.stdout,
            Stream::Stderr => &plan.stderr,
        };
        match &plan.file {
            // An unreadable file has no last lines.
            Some(file) if plan.is_direct() => of_file(file).map(|tail| tail.text()).unwrap_or_default(),
            _ => tail_of(&self.shared, local_rank, stream),
        }
    }

    /// Returns true if the two streams of the only worker are kept together.
    pub fn is_together(&self) -> bool {
        self.together
    }

    /// The file into which this worker writes its errors itself.
    pub fn log_of(&self, local_rank: usize) -> Option<&Path> {
        let plan = self.plans.get(local_rank).map(|plan| &plan.stderr).filter(|plan| plan.is_direct())?;
        plan.file.as_deref()
    }

    /// Returns true if this worker printed its errors to a terminal that it has inherited: its last lines are only there.
    pub fn is_unread(&self, local_rank: usize) -> bool {
        self.plans.get(local_rank).is_some_and(Plan::is_unread)
    }

    /// Waits until everything that has been written so far is read, for this long at most.
    pub async fn catch_up(&self, limit: Duration) {
        let answered = self.shared.lock().ask();
        // A full socket wakes its reader anyway.
        let _ = (&*self.wake).write(b".");
        // A thread that has ended has read everything and does not answer.
        let _ = tokio::time::timeout(limit, answered).await;
    }

    /// Call this after the death of all workers: reads the rest. Gives up when nothing arrived for `limit`, because
    /// another process may hold a stream open forever. Calling it again returns the same result.
    pub async fn finish(&mut self, limit: Duration) -> Finished {
        self.end(limit);
        if let Some(done) = &mut self.done {
            // A thread that sent nothing has panicked, so nothing is known about its streams.
            self.finished = done.await.unwrap_or_default();
            self.done = None;
        }
        self.join();
        self.finished.clone()
    }

    fn end(&self, limit: Duration) {
        self.shared.lock().limit = Some(limit);
        // A full socket wakes its reader anyway.
        let _ = (&*self.wake).write(b".");
    }

    fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            // It has already sent its result.
            let _ = thread.join();
        }
    }
}

impl Drop for Outputs {
    fn drop(&mut self) {
        self.end(Duration::ZERO);
        self.join();
    }
}

/// Returns true if a single worker uses the console, without a prefix: then lines cannot mix.
fn is_alone(plans: &[Plan]) -> bool {
    let shown = |plan: &StreamPlan| plan.console;
    let mut on_console = plans.iter().filter(|plan| shown(&plan.stdout) || shown(&plan.stderr));
    let plain = |plan: &StreamPlan| !plan.console || plan.prefix == Prefix::Never;
    let first = on_console.next();
    first.is_some_and(|plan| plain(&plan.stdout) && plain(&plan.stderr)) && on_console.next().is_none()
}

/// A worker's standard output and error. What must be read goes through a new `pipe`; `together`: through the same one, which
/// is needed to keep the order of both.
fn sinks_of(
    plan: &Plan,
    together: bool,
    mut pipe: impl FnMut(Stream, &StreamPlan) -> io::Result<OwnedFd>,
) -> io::Result<(Sink, Sink)> {
    if together {
        let both = pipe(Stream::Stderr, &plan.stderr)?;
        return Ok((Sink::Fd(both.try_clone()?), Sink::Fd(both)));
    }
    let mut open = |stream, plan: &StreamPlan| match &plan.file {
        Some(file) if plan.is_direct() => Ok(Sink::Fd(open_log(file)?.into())),
        _ if plan.inherit => Ok(Sink::Inherit),
        _ => pipe(stream, plan).map(Sink::Fd),
    };
    Ok((open(Stream::Stdout, &plan.stdout)?, open(Stream::Stderr, &plan.stderr)?))
}
