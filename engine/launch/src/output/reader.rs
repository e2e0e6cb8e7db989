//! The thread that reads all streams of one attempt.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::sync::oneshot;

use super::console::Console;
use super::plan::Stream;
use super::source::{Sinks, Source, Tail};

/// The default capacity of a pipe (pipe(7)), in bytes.
const CHUNK: usize = 64 << 10;

/// The result of reading all output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Finished {
    /// Streams that a process still held open, or that the console did not accept, at the time limit.
    pub given_up: Vec<(usize, Stream)>,
    /// Files that became unwritable, with the operating system's error. The console continued.
    pub failed: Vec<(PathBuf, String)>,
}

/// The state that the agent and the reading thread share.
#[derive(Default)]
pub(super) struct Shared {
    state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    /// By local rank: standard output and error.
    pub(super) tails: Vec<[Tail; 2]>,
    /// Set after the workers have died: reading ends with the streams, or when nothing arrived for this long.
    pub(super) limit: Option<Duration>,
    /// Tasks that wait until everything written so far is read.
    asked: Vec<oneshot::Sender<()>>,
    /// Nothing more will be read.
    closed: bool,
}

impl State {
    /// The time limit, and whether a task waits until everything is read.
    fn requests(&self) -> (Option<Duration>, bool) {
        (self.limit, !self.asked.is_empty())
    }

    /// Becomes ready when all that has been written is read, at once if nothing more will be.
    pub(super) fn ask(&mut self) -> oneshot::Receiver<()> {
        let (answer, answered) = oneshot::channel();
        if !self.closed {
            self.asked.push(answer);
        }
        answered
    }

    fn close(&mut self) {
        self.closed = true;
        self.asked.clear();
    }
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // Every change under the lock is a single step.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) struct Reader {
    pub(super) sources: Vec<Source>,
    pub(super) console: Console,
    pub(super) shared: Arc<Shared>,
    /// The socket that wakes this thread.
    pub(super) wake: Arc<UnixStream>,
    pub(super) woken: UnixStream,
}

impl Reader {
    /// Reads until all streams have ended or are given up.
    pub(super) fn run(mut self) -> Finished {
        let mut buffer = vec![0; CHUNK];
        let mut finished = Finished::default();
        let mut progress: Option<Instant> = None;
        while self.sources.iter().any(|source| source.pipe.is_some()) {
            let now = Instant::now();
            let (limit, is_asked) = self.shared.lock().requests();
            let give_up = limit.map(|limit| *progress.get_or_insert(now) + limit);
            if give_up.is_some_and(|at| at <= now) {
                break;
            }
            self.sources.iter_mut().for_each(|source| source.show_open(now, &self.console));
            let due = self.sources.iter().filter_map(Source::due).chain(give_up).chain(is_asked.then_some(now)).min();
            let Ok(ready) = self.wait(due) else { break };
            if is_asked && ready.is_empty() {
                self.shared.lock().asked.drain(..).for_each(|asked| _ = asked.send(()));
            }
            if self.read(&ready, &mut buffer, &mut finished) {
                progress = progress.map(|_| Instant::now());
            }
        }
        self.give_up(&mut finished);
        self.shared.lock().close();
        finished
    }

    /// Returns the sources that have data, or have ended.
    fn wait(&mut self, due: Option<Instant>) -> io::Result<Vec<usize>> {
        let left = due.map(|due| Timespec::try_from(due.saturating_duration_since(Instant::now())).unwrap_or_default());
        let open = self.sources.iter().enumerate().filter(|(_, source)| !source.parked);
        let (indices, pipes): (Vec<_>, Vec<_>) =
            open.filter_map(|(i, source)| Some((i, source.pipe.as_ref()?))).unzip();
        let mut fds = vec![PollFd::new(&self.woken, PollFlags::IN)];
        fds.extend(pipes.into_iter().map(|pipe| PollFd::new(pipe, PollFlags::IN)));
        match poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let news = !fds[0].revents().is_empty();
        let ready = indices.into_iter().zip(&fds[1..]).filter(|(_, fd)| !fd.revents().is_empty());
        let ready = ready.map(|(index, _)| index).collect();
        if news {
            self.hear();
        }
        Ok(ready)
    }

    fn hear(&mut self) {
        let mut bytes = [0; 64];
        while matches!((&self.woken).read(&mut bytes), Ok(count) if count == bytes.len()) {}
        self.sources.iter_mut().for_each(|source| source.parked = false);
    }

    /// Reads each of these sources once, so that none starves another. Returns true if any data was read.
    fn read(&mut self, ready: &[usize], buffer: &mut [u8], finished: &mut Finished) -> bool {
        let mut any = false;
        for &index in ready {
            let source = &mut self.sources[index];
            source.parked = source.is_shown() && self.console.park(source.stream, source.owner(), &self.wake);
            if !source.parked {
                let mut state = self.shared.lock();
                let tail = &mut state.tails[source.local_rank][source.stream as usize];
                source.read(
                    Instant::now(),
                    buffer,
                    &mut Sinks { console: &self.console, tail, failed: &mut finished.failed },
                );
                any = true;
            }
        }
        any
    }

    fn give_up(&mut self, finished: &mut Finished) {
        for source in &mut self.sources {
            if source.pipe.is_some() {
                finished.given_up.push((source.local_rank, source.stream));
                let mut state = self.shared.lock();
                let tail = &mut state.tails[source.local_rank][source.stream as usize];
                source.finish(&mut Sinks { console: &self.console, tail, failed: &mut finished.failed });
            }
        }
    }
}

/// Returns the last lines of a stream.
pub(super) fn tail_of(shared: &Shared, local_rank: usize, stream: Stream) -> Vec<String> {
    let state = shared.lock();
    state.tails.get(local_rank).map(|tails| tails[stream as usize].text()).unwrap_or_default()
}
