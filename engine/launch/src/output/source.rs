//! One stream of one worker, from the pipe to console and files, and its last lines, for the verdict on a failure and its report.
//! [`Plan`] has the destinations of one worker's output; [`Reader`] is the thread that reads all streams of one attempt.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, PipeReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lockstep_contract::foreign;
use lockstep_process::end_of_file;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use tokio::sync::oneshot;

use super::console::{Console, OpenLines, unwritable};
use super::lines::{Content, Entry, LONGEST, Line, Lines, Owner, Stream};

/// On a terminal an incomplete line is shown after this pause: a prompt, a row of dots, a progress bar.
const PAUSE: Duration = Duration::from_millis(200);
/// In a file or a pipe it is shown this often, so that an hour of a progress bar does not look like a hang.
const INTERVAL: Duration = Duration::from_secs(30);
/// At most this much of its end is shown there, in bytes.
const LONGEST_SHOWN: usize = 1 << 10;

/// A stream that is being read.
pub(super) struct Source {
    pub(super) local_rank: usize,
    pub(super) stream: Stream,
    /// `None` once it has ended or was given up.
    pub(super) pipe: Option<PipeReader>,
    /// True while its share of the console is used up.
    pub(super) parked: bool,
    plan: StreamPlan,
    raw: bool,
    open_lines: OpenLines,
    file: Log,
    filtered: Log,
    lines: Lines,
    unshown_since: Option<Instant>,
}

/// A file that is written until a write fails.
struct Log(Option<(PathBuf, File)>);

/// The destinations of the data.
struct Sinks<'a> {
    pub(super) console: &'a Console,
    pub(super) tail: &'a mut Tail,
    /// Files that became unwritable, with the operating system's error.
    pub(super) failed: &'a mut Vec<(PathBuf, String)>,
}

impl Source {
    /// Opens a stream according to its plan. `raw`: the console gets every byte unchanged.
    pub(super) fn open(
        local_rank: usize,
        stream: Stream,
        plan: StreamPlan,
        raw: bool,
        pipe: PipeReader,
        console: &Console,
    ) -> io::Result<Self> {
        let file = Log::open(plan.file.as_deref())?;
        let filtered = Log::open(plan.filtered.as_deref().filter(|_| plan.is_filtered()))?;
        let lines_shown = plan.console && !raw;
        let open_lines = if lines_shown { console.open_lines(stream) } else { OpenLines::Hidden };
        let pipe = Some(pipe);
        let (parked, lines, unshown_since) = (false, Lines::default(), None);
        Ok(Source { local_rank, stream, pipe, parked, plan, raw, open_lines, file, filtered, lines, unshown_since })
    }

    /// Its owner id on the console.
    pub(super) fn owner(&self) -> Owner {
        self.local_rank as Owner + 1
    }

    /// Reads the available data, up to the buffer's size. Returns true if the stream continues.
    fn read(&mut self, now: Instant, buffer: &mut [u8], sinks: &mut Sinks<'_>) -> bool {
        let Some(pipe) = &mut self.pipe else { return false };
        match pipe.read(buffer) {
            Ok(0) => self.finish(sinks),
            Ok(count) => self.take(now, &buffer[..count], sinks),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => self.finish(sinks),
        }
        self.pipe.is_some()
    }

    fn take(&mut self, now: Instant, chunk: &[u8], sinks: &mut Sinks<'_>) {
        self.file.write(chunk, sinks.failed);
        if self.plan.console && self.raw {
            sinks.console.push(self.entry(Content::Raw(chunk.to_vec())));
        }
        let mut lines = std::mem::take(&mut self.lines);
        lines.push(chunk, |line| {
            self.unshown_since = None;
            self.line(line, sinks);
        });
        self.lines = lines;
        self.unshown_since = match self.open_lines {
            _ if self.lines.open().is_empty() => None,
            OpenLines::Hidden => None,
            OpenLines::InPlace => Some(now),
            OpenLines::Regularly => Some(self.unshown_since.unwrap_or(now)),
        };
    }

    /// Ends the stream, or gives it up: the rest is a line.
    fn finish(&mut self, sinks: &mut Sinks<'_>) {
        self.pipe = None;
        let mut lines = std::mem::take(&mut self.lines);
        lines.finish(|line| self.line(line, sinks));
        self.unshown_since = None;
    }

    fn line(&mut self, line: Line<'_>, sinks: &mut Sinks<'_>) {
        sinks.tail.push(line.bytes);
        if self.plan.console && !self.raw {
            let text = marked(line);
            sinks.console.push(self.entry(if line.updated { Content::Replacement(text) } else { Content::Line(text) }));
        }
        if self.plan.is_filtered() && self.plan.filters.iter().any(|needle| contains(line.bytes, needle.as_bytes())) {
            let whole = [self.plan.prefix.as_bytes(), &marked(line), b"\n"].concat();
            self.filtered.write(&whole, sinks.failed);
        }
    }

    /// When to show the open line.
    pub(super) fn due(&self) -> Option<Instant> {
        let after = if self.open_lines == OpenLines::Regularly { INTERVAL } else { PAUSE };
        self.unshown_since.map(|since| since + after)
    }

    /// Shows the open line if it is due.
    fn show_open(&mut self, now: Instant, console: &Console) {
        if self.due().is_some_and(|due| due <= now) {
            self.unshown_since = None;
            let open = self.lines.open();
            console.push(self.entry(match self.open_lines {
                OpenLines::Regularly => Content::Replacement(end_of(open)),
                _ if self.lines.is_update() => Content::State(open.to_vec()),
                _ => Content::Open(open.to_vec()),
            }));
        }
    }

    fn entry(&self, content: Content) -> Entry {
        Entry { owner: self.owner(), stream: self.stream, prefix: self.plan.prefix.as_bytes().to_vec(), content }
    }
}

impl Log {
    fn open(path: Option<&Path>) -> io::Result<Self> {
        Ok(Log(path.map(|path| Ok::<_, io::Error>((path.to_owned(), open_log(path)?))).transpose()?))
    }

    fn write(&mut self, bytes: &[u8], failed: &mut Vec<(PathBuf, String)>) {
        let Some((path, file)) = &mut self.0 else { return };
        if let Err(error) = file.write_all(bytes) {
            failed.push((std::mem::take(path), unwritable(&error)));
            self.0 = None;
        }
    }
}

/// Opens a log for several writers, each of which appends complete lines.
pub(super) fn open_log(path: &Path) -> io::Result<File> {
    let opened = File::options().append(true).create(true).open(path);
    opened.map_err(|error| {
        io::Error::new(error.kind(), format!("cannot open {} for the workers' output: {error}", foreign::path(path)))
    })
}

fn marked(line: Line<'_>) -> Vec<u8> {
    let mut bytes = line.bytes.to_vec();
    if line.broken {
        bytes.extend_from_slice(format!(" [lockstep: broken here, after {} KiB]", LONGEST >> 10).as_bytes());
    }
    bytes
}

/// The end of a line that may be long.
fn end_of(line: &[u8]) -> Vec<u8> {
    match line.len().checked_sub(LONGEST_SHOWN) {
        None | Some(0) => line.to_vec(),
        Some(cut) => ["…".as_bytes(), &line[cut..]].concat(),
    }
}

/// Returns true if `needle` occurs. torchrun's filters are plain texts, too.
fn contains(line: &[u8], needle: &[u8]) -> bool {
    needle.is_empty() || line.windows(needle.len()).any(|window| window == needle)
}

/// The maximum number of lines: a Python traceback with the exceptions that caused it.
pub(super) const LINES: usize = 200;
/// The maximum size of all lines, in bytes.
const BYTES: usize = 16 << 10;
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

/// The last lines of a file, without reading the rest.
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

/// The destinations of both streams of a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Its standard output.
    pub stdout: StreamPlan,
    /// Its standard error.
    pub stderr: StreamPlan,
}

/// The destinations of one stream. If a stream only goes to a file (torchrun's `--redirects`), the worker writes the
/// file directly, so that nothing is lost if the agent dies; file and console are its `--tee`. With neither, only the
/// last lines are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamPlan {
    /// Show it on the agent's stream of the same kind.
    pub console: bool,
    /// The worker inherits the agent's own stream, a terminal. Then all other fields are ignored, and its last lines are
    /// unknown.
    pub inherit: bool,
    /// Write it to this file, in an existing folder.
    pub file: Option<PathBuf>,
    /// The prefix of each line on the console and in the filtered file; never in `file`.
    pub prefix: Prefix,
    /// Lines that contain one of these are also written to `filtered`.
    pub filters: Vec<String>,
    /// One file for all workers of a node: torchrun's `filtered_stdout.log` and `filtered_stderr.log`.
    pub filtered: Option<PathBuf>,
}

/// The prefix of a worker's lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Prefix {
    /// Nothing.
    #[default]
    Never,
    /// This text.
    Always(String),
}

impl Plan {
    /// Returns true if both streams only go to the console.
    pub(super) fn is_console_alone(&self) -> bool {
        let shown = |plan: &StreamPlan| plan.console && !plan.inherit && plan.file.is_none();
        shown(&self.stdout) && shown(&self.stderr)
    }

    /// Returns true if the worker printed its errors to a terminal that it has inherited.
    pub(super) fn is_unread(&self) -> bool {
        self.stderr.inherit
    }
}

impl Prefix {
    pub(super) fn as_bytes(&self) -> &[u8] {
        match self {
            Prefix::Never => b"",
            Prefix::Always(text) => text.as_bytes(),
        }
    }
}

impl StreamPlan {
    /// Returns true if lines must be checked against filters.
    fn is_filtered(&self) -> bool {
        self.filtered.is_some() && !self.filters.is_empty()
    }

    /// Returns true if the worker can write the file directly.
    pub(super) fn is_direct(&self) -> bool {
        self.file.is_some() && !self.console && !self.is_filtered()
    }
}

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
    /// The time limit, and the tasks that have begun to wait since the last call.
    fn requests(&mut self) -> (Option<Duration>, Vec<oneshot::Sender<()>>) {
        (self.limit, std::mem::take(&mut self.asked))
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
            let (limit, asked) = self.shared.lock().requests();
            let at_once = (!asked.is_empty()).then_some(now);
            let give_up = limit.map(|limit| *progress.get_or_insert(now) + limit);
            if give_up.is_some_and(|at| at <= now) {
                break;
            }
            self.sources.iter_mut().for_each(|source| source.show_open(now, &self.console));
            let due = self.sources.iter().filter_map(Source::due).chain(give_up).chain(at_once).min();
            let Ok(ready) = self.wait(due) else { break };
            if self.read(&ready, &mut buffer, &mut finished) {
                progress = progress.map(|_| Instant::now());
            }
            // A pipe holds no more than a read takes, so what was written before they asked is read, even if workers go on writing.
            asked.into_iter().for_each(|asked| _ = asked.send(()));
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
        retry_on_intr(|| poll(&mut fds, left.as_ref()))?;
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
            source.parked = source.plan.console && self.console.park(source.stream, source.owner(), &self.wake);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Prefix;

    /// The text on a terminal for one of several ranks that prints these chunks, each followed by a pause of that
    /// length.
    fn seen(chunks: &[(&[u8], Duration)]) -> String {
        shown(OpenLines::InPlace, chunks)
    }

    fn shown(open_lines: OpenLines, chunks: &[(&[u8], Duration)]) -> String {
        let (mut read, write) = io::pipe().unwrap();
        let console = Console::to(write.into(), File::options().write(true).open("/dev/null").unwrap().into()).unwrap();
        let (pipe, mut worker) = io::pipe().unwrap();
        let plan = StreamPlan { console: true, prefix: Prefix::Always("[0]:".into()), ..StreamPlan::default() };
        let mut source = Source::open(0, Stream::Stdout, plan, false, pipe, &console).unwrap();
        source.open_lines = open_lines;
        let (mut tail, mut failed, mut now) = (Tail::default(), vec![], Instant::now());
        for (chunk, pause) in chunks {
            worker.write_all(chunk).unwrap();
            let mut sinks = Sinks { console: &console, tail: &mut tail, failed: &mut failed };
            assert!(source.read(now, &mut [0; 10_000], &mut sinks));
            now += *pause;
            source.show_open(now, &console);
        }
        drop(console);
        let mut seen = String::new();
        read.read_to_string(&mut seen).unwrap();
        seen
    }

    #[test]
    fn a_terminal_shows_an_open_line_after_a_pause() {
        let short = PAUSE - Duration::from_nanos(1);
        assert_eq!(seen(&[(b"Name: ", short)]), "");
        assert_eq!(seen(&[(b"Name: ", PAUSE), (b"x\n", short)]), "[0]:Name: x\n");
        assert_eq!(seen(&[(b".", PAUSE), (b".", short), (b".", PAUSE)]), "[0]:...");
    }

    #[test]
    fn a_terminal_shows_only_the_state_at_which_a_progress_bar_pauses() {
        assert_eq!(
            seen(&[(b"\r 1%\r 2%", PAUSE), (b"\r 3%", Duration::ZERO), (b"\r 4%\n", PAUSE)]),
            "[0]: 2%\r\x1b[K[0]: 4%\n"
        );
    }

    #[test]
    fn a_terminal_shows_the_end_of_a_progress_bar_that_began_with_a_text() {
        assert_eq!(seen(&[(b"start", PAUSE), (b"\r100%\n", PAUSE)]), "[0]:start\n[0]:100%\n");
    }

    #[test]
    fn a_file_gets_the_state_of_a_progress_bar_every_half_minute() {
        let tenth = INTERVAL / 10;
        let states: Vec<String> = (0..25).map(|state| format!("\r{state}%")).collect();
        let chunks: Vec<(&[u8], Duration)> = states.iter().map(|state| (state.as_bytes(), tenth)).collect();
        let ended = [&chunks[..], &[(b"\rdone\n".as_slice(), INTERVAL)]].concat();
        assert_eq!(shown(OpenLines::Regularly, &ended), "[0]:9%\n[0]:19%\n[0]:done\n");
    }

    #[test]
    fn a_file_gets_a_line_that_does_not_end_every_half_minute_and_then_as_a_whole() {
        let file = |chunks: &[(&[u8], Duration)]| shown(OpenLines::Regularly, chunks);
        let short = INTERVAL - Duration::from_nanos(1);
        assert_eq!(file(&[(b"..", short), (b".\n", INTERVAL)]), "[0]:...\n");
        assert_eq!(file(&[(b"a..", INTERVAL), (b".", INTERVAL), (b"b\n", INTERVAL)]), "[0]:a..\n[0]:a...\n[0]:a...b\n");
        // The half minute begins with the line.
        assert_eq!(file(&[(b"x", short), (b"\ny", short)]), "[0]:x\n");
        let long = [&[b'.'; 2 * LONGEST_SHOWN][..], b"!"].concat();
        let end = format!("[0]:…{}!\n", ".".repeat(LONGEST_SHOWN - 1));
        assert_eq!(file(&[(&long, INTERVAL)]), end);
    }

    #[test]
    fn finds_a_text_anywhere_in_a_line() {
        assert!(contains(b"step 4 loss", b"step") && contains(b"a loss", b"loss") && contains(b"x", b""));
        assert!(!contains(b"los", b"loss") && !contains(b"", b"a"));
    }

    #[test]
    fn marks_a_split_line() {
        assert_eq!(
            marked(Line { bytes: b"x", broken: true, updated: false }),
            b"x [lockstep: broken here, after 1024 KiB]"
        );
        assert_eq!(marked(Line { bytes: b"x", broken: false, updated: false }), b"x");
    }

    #[test]
    fn names_the_log_that_cannot_be_opened() {
        let error = open_log(Path::new("/no/such/folder/stdout.log")).unwrap_err().to_string();
        assert!(error.starts_with("cannot open /no/such/folder/stdout.log for the workers' output: "), "{error}");
    }

    #[test]
    fn a_log_that_fails_is_reported_once() {
        let mut log = Log::open(Some(Path::new("/dev/full"))).unwrap();
        let mut failed = vec![];
        log.write(b"x", &mut failed);
        log.write(b"y", &mut failed);
        assert_eq!(failed.len(), 1);
        assert_eq!(failed[0].0, Path::new("/dev/full"));
    }

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

    #[test]
    fn the_worker_writes_a_file_directly_only_if_it_is_the_only_destination() {
        let file = StreamPlan { file: Some("x".into()), ..StreamPlan::default() };
        let filters = StreamPlan { filters: vec!["a".into()], ..file.clone() };
        assert!(file.is_direct() && filters.is_direct());
        assert!(!StreamPlan { console: true, ..file }.is_direct());
        assert!(!StreamPlan { filtered: Some("y".into()), ..filters }.is_direct());
        assert!(!StreamPlan::default().is_direct());
    }
}
