//! The thread that reads all streams of one attempt, and their last lines, for the verdict on a failure and its report.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lockstep_process::end_of_file;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::sync::oneshot;

use super::Stream;
use super::console::Console;
use super::lines::Lines;
use super::source::{Sinks, Source};

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

/// The maximum number of lines: a Python traceback with the exceptions that caused it.
pub(super) const LINES: usize = 200;
/// The maximum size of all lines, in bytes.
pub(super) const BYTES: usize = 16 << 10;
/// The maximum size of one line, in bytes.
const LINE: usize = 4 << 10;

/// The last lines, limited in number and size.
#[derive(Debug, Default)]
pub(super) struct Tail {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
}

impl Tail {
    pub(super) fn push(&mut self, line: &[u8]) {
        let line = &line[..line.len().min(LINE)];
        self.bytes += line.len();
        self.lines.push_back(line.to_vec());
        while self.lines.len() > LINES || self.bytes > BYTES {
            self.bytes -= self.lines.pop_front().map_or(0, |line| line.len());
        }
    }

    /// The lines as text; bytes that are not UTF-8 are replaced.
    pub(super) fn text(&self) -> Vec<String> {
        self.lines.iter().map(|line| String::from_utf8_lossy(line).trim_end_matches('\r').to_owned()).collect()
    }
}

/// The last lines of a file, without reading all of it.
pub(super) fn of_file(path: &Path) -> io::Result<Tail> {
    // One more byte shows whether a line begins there.
    let end = end_of_file(path, BYTES as u64 + 1)?;
    let whole = match end.iter().position(|byte| *byte == b'\n') {
        _ if end.len() <= BYTES => &end[..],
        Some(at) => &end[at + 1..],
        None => &end[1..],
    };
    let mut tail = Tail::default();
    let mut lines = Lines::default();
    lines.push(whole, |line| tail.push(line.bytes));
    lines.finish(|line| tail.push(line.bytes));
    Ok(tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_the_last_lines_in_number_and_size() {
        let mut tail = Tail::default();
        (0..300).for_each(|number| tail.push(format!("line {number}").as_bytes()));
        assert_eq!(
            (tail.text().len(), tail.text()[0].as_str(), tail.text()[LINES - 1].as_str()),
            (LINES, "line 100", "line 299")
        );
        (0..10).for_each(|_| tail.push(&[b'x'; 2 * LINE]));
        assert_eq!((tail.text().len(), tail.text()[0].len(), tail.bytes), (BYTES / LINE, LINE, BYTES));
    }

    #[test]
    fn shows_bytes_that_are_not_text() {
        let mut tail = Tail::default();
        tail.push(b"\xffa\r");
        assert_eq!(tail.text(), ["\u{fffd}a"]);
    }

    #[test]
    fn reads_the_end_of_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stderr.log");
        std::fs::write(&path, "one\ntwo\nthree").unwrap();
        assert_eq!(of_file(&path).unwrap().text(), ["one", "two", "three"]);
        let long: String = (0..5000).map(|number| format!("line {number}\n")).collect();
        std::fs::write(&path, long).unwrap();
        let text = of_file(&path).unwrap().text();
        assert_eq!((text.len(), text[0].as_str(), text[LINES - 1].as_str()), (LINES, "line 4800", "line 4999"));
        std::fs::write(&path, vec![b'x'; 3 * BYTES]).unwrap();
        assert_eq!(of_file(&path).unwrap().text(), ["x".repeat(LINE)]);
    }
}
