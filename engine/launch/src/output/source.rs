//! One stream of one worker, from the pipe to console and files, and its last lines, for the verdict on a failure and its report.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, PipeReader, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lockstep_contract::foreign;
use lockstep_process::end_of_file;

use super::console::Console;
use super::lines::{Content, Entry, LONGEST, Line, Lines, Owner};
use super::plan::{OpenLines, Stream, StreamPlan};

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
pub(super) struct Log(Option<(PathBuf, File)>);

/// The destinations of the data.
pub(super) struct Sinks<'a> {
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

    /// Returns true if it goes to the console.
    pub(super) fn is_shown(&self) -> bool {
        self.plan.console
    }

    /// Reads the available data, up to the buffer's size. Returns true if the stream continues.
    pub(super) fn read(&mut self, now: Instant, buffer: &mut [u8], sinks: &mut Sinks<'_>) -> bool {
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
    pub(super) fn finish(&mut self, sinks: &mut Sinks<'_>) {
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
    pub(super) fn show_open(&mut self, now: Instant, console: &Console) {
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

/// Why a file does not grow any more.
pub(super) fn unwritable(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::FileTooLarge => format!("{error}: `ulimit -f` limits the size of a file"),
        io::ErrorKind::QuotaExceeded => format!("{error}: see `quota -s`"),
        io::ErrorKind::StorageFull => format!("{error}: see `df -h` and `df -i`"),
        _ => error.to_string(),
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
}
