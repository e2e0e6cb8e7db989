//! The output of all workers of one attempt.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lockstep_process::Sink;
use tokio::sync::oneshot;

use super::console::Console;
use super::plan::{Plan, Prefix, Stream, StreamPlan};
use super::reader::{Finished, Reader, Shared, tail_of};
use super::source::{Source, open_log};
use super::tail;

/// What is being read from the workers of one attempt, by local rank. Dropping it reads no more.
pub struct Outputs {
    plans: Vec<Plan>,
    shared: Arc<Shared>,
    wake: Arc<UnixStream>,
    done: Option<oneshot::Receiver<Finished>>,
    finished: Finished,
    thread: Option<JoinHandle<()>>,
}

impl Outputs {
    /// Opens what the plans name, one for each local rank from 0 on, and starts to read. Returned beside it: standard
    /// output and error of each worker, for its [`Spec`](lockstep_process::Spec).
    ///
    /// # Errors
    /// When a file cannot be opened, with its name.
    pub fn open(console: &Console, plans: Vec<Plan>) -> io::Result<(Self, Vec<(Sink, Sink)>)> {
        let raw = is_alone(&plans);
        let mut sources = vec![];
        let mut sinks = vec![];
        for (local_rank, plan) in plans.iter().enumerate() {
            let mut open =
                |stream, plan: &StreamPlan| open_stream(local_rank, stream, plan, raw, console, &mut sources);
            sinks.push((open(Stream::Stdout, &plan.stdout)?, open(Stream::Stderr, &plan.stderr)?));
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
            // Nobody may be interested any more.
            let _ = tell.send(reader.run());
        };
        let thread = Some(thread::Builder::new().name("output".into()).spawn(run)?);
        let outputs = Outputs { plans, shared, wake, done: Some(done), finished: Finished::default(), thread };
        Ok((outputs, sinks))
    }

    /// The last 20 lines of a stream, at most 16 KiB, as text. Of a line that has not ended they tell after
    /// [`Self::finish`].
    pub fn tail(&self, local_rank: usize, stream: Stream) -> Vec<String> {
        let Some(plan) = self.plans.get(local_rank) else { return vec![] };
        let plan = match stream {
            Stream::Stdout => &plan.stdout,
            Stream::Stderr => &plan.stderr,
        };
        match &plan.file {
            // A file that cannot be read has no last lines to tell.
            Some(file) if plan.is_direct() => tail::of_file(file).map(|tail| tail.text()).unwrap_or_default(),
            _ => tail_of(&self.shared, local_rank, stream),
        }
    }

    /// To be called after the death of all workers: takes in the rest. Gives up when nothing more came for `limit`, since
    /// somebody else may hold a stream open for ever. Once more, it tells the same again.
    pub async fn finish(&mut self, limit: Duration) -> Finished {
        self.end(limit);
        if let Some(done) = &mut self.done {
            // A thread that is gone without a word has panicked; then nothing is known of its streams.
            self.finished = done.await.unwrap_or_default();
            self.done = None;
        }
        self.join();
        self.finished.clone()
    }

    fn end(&self, limit: Duration) {
        self.shared.lock().limit = Some(limit);
        // A full socket already wakes.
        let _ = (&*self.wake).write(b".");
    }

    fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            // It has told all that it had to tell.
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

/// One worker alone on the console whose lines get no prefix: then there is nothing to keep apart.
fn is_alone(plans: &[Plan]) -> bool {
    let shown = |plan: &StreamPlan| plan.console;
    let mut on_console = plans.iter().filter(|plan| shown(&plan.stdout) || shown(&plan.stderr));
    let plain = |plan: &StreamPlan| !plan.console || plan.prefix == Prefix::Never;
    let first = on_console.next();
    first.is_some_and(|plan| plain(&plan.stdout) && plain(&plan.stderr)) && on_console.next().is_none()
}

fn open_stream(
    local_rank: usize,
    stream: Stream,
    plan: &StreamPlan,
    raw: bool,
    console: &Console,
    sources: &mut Vec<Source>,
) -> io::Result<Sink> {
    if let Some(file) = plan.file.as_ref().filter(|_| plan.is_direct()) {
        return Ok(Sink::Fd(open_log(file)?.into()));
    }
    if plan.inherit {
        return Ok(Sink::Inherit);
    }
    let (read, write) = io::pipe()?;
    sources.push(Source::open(local_rank, stream, plan.clone(), raw, read, console)?);
    Ok(Sink::Fd(OwnedFd::from(write)))
}
