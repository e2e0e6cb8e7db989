//! The agent's own standard output and error, which all workers share. One thread per device writes, so that lines
//! never mix and a slow device delays only those who print to it.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use lockstep_contract::foreign;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::termios::isatty;

use super::lines::{AGENT, Content, Entry, LineMultiplexer, Owner, Stream};

/// The maximum amount of one worker's output that waits for a device, in bytes; after that the worker waits.
const QUOTA: usize = 256 << 10;
/// The amount that is written at a time, in bytes.
const BATCH: usize = 64 << 10;

/// The place where workers' output is shown. Clones refer to the same console.
#[derive(Clone)]
pub struct Console(Arc<Devices>);

struct Devices {
    stdout: Arc<Device>,
    stderr: Arc<Device>,
    terminal: [bool; 2],
}

/// A file or terminal, with the output that waits for it.
struct Device {
    state: Mutex<State>,
    /// Notified when output arrives or has been written.
    changed: Condvar,
    /// The status line that is drawn below the output and is hidden while output is written.
    status: OnceLock<ProgressBar>,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Entry>,
    /// The amount of waiting output of each owner, in bytes.
    waiting: HashMap<Owner, usize>,
    /// Owners that wait until their share has become small, with their wake-up sockets.
    parked: Vec<(Owner, Arc<UnixStream>)>,
    /// True while the thread writes.
    writing: bool,
    /// Counts the writes.
    progress: u64,
    /// True if the device has no reader any more.
    gone: bool,
    /// True after the last console of this device was dropped.
    closed: bool,
}

impl Console {
    /// This process's standard output and error. Nothing else may write to them from now on; the agent's own messages
    /// use [`Self::line`].
    ///
    /// # Errors
    /// The descriptors cannot be copied, or no thread can be started.
    pub fn of_this_process() -> io::Result<Self> {
        // A closed stream discards everything.
        let own = |fd: io::Result<OwnedFd>| {
            fd.or_else(|_| Ok::<_, io::Error>(File::options().write(true).open("/dev/null")?.into()))
        };
        Self::to(own(io::stdout().as_fd().try_clone_to_owned())?, own(io::stderr().as_fd().try_clone_to_owned())?)
    }

    /// A console on two open files. If they are the same (a terminal, or `2>&1`), lines of both take turns.
    ///
    /// # Errors
    /// The descriptors cannot be copied, or no thread can be started.
    pub fn to(stdout: OwnedFd, stderr: OwnedFd) -> io::Result<Self> {
        let terminal = [isatty(&stdout), isatty(&stderr)];
        let (stdout, stderr) = (File::from(stdout), File::from(stderr));
        let identity = |file: &File| file.metadata().map(|about| (about.dev(), about.ino(), about.rdev()));
        if identity(&stdout)? == identity(&stderr)? {
            let both = Device::start([stdout, stderr], None)?;
            return Ok(Console(Arc::new(Devices { stdout: Arc::clone(&both), stderr: both, terminal })));
        }
        let stderr = Device::start([stderr.try_clone()?, stderr], None)?;
        let stdout = Device::start([stdout.try_clone()?, stdout], Some(Arc::clone(&stderr)))?;
        Ok(Console(Arc::new(Devices { stdout, stderr, terminal })))
    }

    /// Returns true if both streams go to the same device: a terminal, or `2>&1`.
    pub fn is_one_device(&self) -> bool {
        Arc::ptr_eq(&self.0.stdout, &self.0.stderr)
    }

    /// Returns true if this stream is a terminal.
    pub fn is_terminal(&self, stream: Stream) -> bool {
        self.0.terminal[stream as usize]
    }

    /// Shows all further lines above `bar`, which is drawn on stderr. Incomplete lines are not shown then.
    pub fn draw_above(&self, bar: &ProgressBar) {
        for device in [&self.0.stdout, &self.0.stderr] {
            // A console has at most one bar.
            let _ = device.status.set(bar.clone());
        }
    }

    /// How incomplete lines are shown.
    pub(super) fn open_lines(&self, stream: Stream) -> OpenLines {
        match self.device(stream).status.get() {
            _ if !self.is_terminal(stream) => OpenLines::Regularly,
            None => OpenLines::InPlace,
            Some(_) => OpenLines::Hidden,
        }
    }

    /// Shows a line of the agent itself, on stderr, after its name. It stays one line, whatever the text contains.
    pub fn say(&self, text: &str) {
        self.line(Stream::Stderr, format!("lockstep: {}", foreign::escaped(text)).as_bytes());
    }

    /// Shows a text of the agent itself that may have several lines.
    pub fn say_lines(&self, text: &str) {
        self.line(Stream::Stderr, format!("lockstep: {}", foreign::lines(text)).as_bytes());
    }

    /// Shows the agent's own message, each line as a complete line. Never blocks: if the device is too slow, the excess
    /// is discarded.
    pub fn line(&self, stream: Stream, text: &[u8]) {
        let text = text.strip_suffix(b"\n").unwrap_or(text);
        for line in text.split(|byte| *byte == b'\n') {
            if !self.is_full(stream, AGENT) {
                let content = Content::Line(line.to_vec());
                self.push(Entry { owner: AGENT, stream, prefix: vec![], content });
            }
        }
    }

    /// Waits until everything is written and returns true; returns false if nothing was written for `limit`.
    pub fn flush(&self, limit: Duration) -> bool {
        self.0.stdout.flush(limit) & self.0.stderr.flush(limit)
    }

    pub(super) fn push(&self, entry: Entry) {
        self.device(entry.stream).push(entry);
    }

    pub(super) fn is_full(&self, stream: Stream, owner: Owner) -> bool {
        self.device(stream).lock().waiting.get(&owner).is_some_and(|waiting| *waiting >= QUOTA)
    }

    /// Returns true if the owner must wait; `wake` is written to when it may continue.
    pub(super) fn park(&self, stream: Stream, owner: Owner, wake: &Arc<UnixStream>) -> bool {
        let mut state = self.device(stream).lock();
        let full = state.waiting.get(&owner).is_some_and(|waiting| *waiting >= QUOTA);
        if full {
            state.parked.push((owner, Arc::clone(wake)));
        }
        full
    }

    fn device(&self, stream: Stream) -> &Arc<Device> {
        match stream {
            Stream::Stdout => &self.0.stdout,
            Stream::Stderr => &self.0.stderr,
        }
    }
}

impl Device {
    /// Where this device cannot be written any more, `other` shows why.
    fn start(files: [File; 2], other: Option<Arc<Device>>) -> io::Result<Arc<Self>> {
        let device = Arc::new(Device { state: Mutex::default(), changed: Condvar::new(), status: OnceLock::new() });
        let writer = Arc::clone(&device);
        thread::Builder::new().name("console".into()).spawn(move || writer.write(files, other.as_deref()))?;
        Ok(device)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is consistent after each statement, so a panic elsewhere does not corrupt it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, entry: Entry) {
        let mut state = self.lock();
        if !state.gone {
            *state.waiting.entry(entry.owner).or_default() += entry.size();
            state.queue.push_back(entry);
            self.changed.notify_all();
        }
    }

    fn flush(&self, limit: Duration) -> bool {
        let mut state = self.lock();
        let (mut seen, mut since) = (state.progress, Instant::now());
        while state.writing || !state.queue.is_empty() {
            if state.progress != seen {
                (seen, since) = (state.progress, Instant::now());
            }
            let left = limit.saturating_sub(since.elapsed());
            if left.is_zero() {
                return false;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// The writer thread.
    fn write(&self, mut files: [File; 2], other: Option<&Device>) {
        let mut multiplexer = LineMultiplexer::default();
        while let Some(batch) = self.take() {
            let written = match self.status.get() {
                Some(bar) => bar.suspend(|| write_batch(&mut multiplexer, &batch, &mut files)),
                None => write_batch(&mut multiplexer, &batch, &mut files),
            };
            // That a reader has gone, such as head(1), is usual.
            if let Some((other, error)) = other.zip(written.as_ref().err())
                && error.kind() != io::ErrorKind::BrokenPipe
            {
                let why = unwritable(error);
                let text = format!(
                    "lockstep: standard output is not complete: {why}; the job goes on, its further lines are lost"
                );
                let (content, prefix) = (Content::Line(text.into_bytes()), vec![]);
                other.push(Entry { owner: AGENT, stream: Stream::Stderr, prefix, content });
            }
            self.done(&batch, written.is_err());
        }
    }

    fn take(&self) -> Option<Vec<Entry>> {
        let mut state = self.lock();
        while state.queue.is_empty() {
            if state.closed {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let mut batch = vec![];
        let mut size = 0;
        while size < BATCH
            && let Some(entry) = state.queue.pop_front()
        {
            size += entry.size();
            batch.push(entry);
        }
        state.writing = true;
        Some(batch)
    }

    fn done(&self, batch: &[Entry], gone: bool) {
        let mut state = self.lock();
        state.writing = false;
        state.progress += 1;
        for entry in batch {
            if let Some(waiting) = state.waiting.get_mut(&entry.owner) {
                *waiting = waiting.saturating_sub(entry.size());
            }
        }
        if gone {
            state.gone = true;
            state.queue.clear();
            state.waiting.clear();
        }
        state.waiting.retain(|_, waiting| *waiting > 0);
        let State { parked, waiting, .. } = &mut *state;
        parked.retain(|(owner, wake)| {
            let small = waiting.get(owner).is_none_or(|waiting| *waiting < QUOTA / 2);
            if small {
                // A full socket wakes its reader anyway.
                let _ = (&**wake).write(b".");
            }
            !small
        });
        self.changed.notify_all();
    }
}

impl Drop for Devices {
    /// The writers end when they have written the waiting output. Dropping does not wait for them: see
    /// [`Console::flush`].
    fn drop(&mut self) {
        for device in [&self.stdout, &self.stderr] {
            device.lock().closed = true;
            device.changed.notify_all();
        }
    }
}

fn write_batch(multiplexer: &mut LineMultiplexer, batch: &[Entry], files: &mut [File; 2]) -> io::Result<()> {
    let mut bytes = vec![];
    let mut stream = Stream::Stdout;
    for entry in batch {
        if entry.stream != stream {
            write_all(&mut files[stream as usize], &bytes)?;
            bytes.clear();
            stream = entry.stream;
        }
        multiplexer.show(entry, &mut bytes);
    }
    write_all(&mut files[stream as usize], &bytes)
}

fn write_all(file: &mut File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // Another process that has this terminal or pipe open made it non-blocking.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                poll(&mut [PollFd::new(file, PollFlags::OUT)], None)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// How the console shows an incomplete line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpenLines {
    /// Not at all.
    Hidden,
    /// In place, when the worker pauses.
    InPlace,
    /// As lines of their own, every half minute.
    Regularly,
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

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn line(owner: Owner, text: &[u8]) -> Entry {
        Entry { owner, stream: Stream::Stdout, prefix: b"> ".to_vec(), content: Content::Line(text.to_vec()) }
    }

    fn piped() -> (io::PipeReader, Console) {
        let (read, write) = io::pipe().unwrap();
        let nowhere = File::options().write(true).open("/dev/null").unwrap();
        (read, Console::to(write.into(), nowhere.into()).unwrap())
    }

    #[test]
    fn shows_lines_and_ends_with_its_last_clone() {
        let (mut read, console) = piped();
        let clone = console.clone();
        clone.push(line(1, b"a"));
        drop(clone);
        console.line(Stream::Stdout, b"two\nlines\n");
        assert!(console.flush(LIMIT));
        drop(console);
        let mut shown = String::new();
        read.read_to_string(&mut shown).unwrap();
        assert_eq!(shown, "> a\ntwo\nlines\n");
    }

    #[test]
    fn a_line_of_the_agent_is_one_line() {
        let (mut read, write) = io::pipe().unwrap();
        let console = Console::to(write.try_clone().unwrap().into(), write.into()).unwrap();
        console.say("a\nb\x1b[2J");
        console.say_lines("a\nb\x1b[2J");
        assert!(console.flush(LIMIT));
        drop(console);
        let mut shown = String::new();
        read.read_to_string(&mut shown).unwrap();
        assert_eq!(shown, "lockstep: a\\nb\\u{1b}[2J\nlockstep: a\nb\\u{1b}[2J\n");
    }

    #[test]
    fn two_streams_of_one_device_take_turns() {
        let (mut read, write) = io::pipe().unwrap();
        let console = Console::to(write.try_clone().unwrap().into(), write.into()).unwrap();
        for number in 0..100 {
            let stream = if number % 2 == 0 { Stream::Stdout } else { Stream::Stderr };
            console.push(Entry { stream, ..line(number, number.to_string().as_bytes()) });
        }
        assert!(console.flush(LIMIT));
        drop(console);
        let mut shown = String::new();
        read.read_to_string(&mut shown).unwrap();
        assert_eq!(shown, (0..100).map(|number| format!("> {number}\n")).collect::<String>());
    }

    #[test]
    fn a_blocked_device_delays_only_the_owner_that_fills_it() {
        let (mut read, console) = piped();
        let (wake, woken) = UnixStream::pair().unwrap();
        let wake = Arc::new(wake);
        // Parked as soon as it is full: the writer may finish a small batch afterwards.
        while !console.park(Stream::Stdout, 1, &wake) {
            console.push(line(1, &[b'x'; 1000]));
        }
        assert!(!console.park(Stream::Stdout, 2, &wake));
        assert!(!console.flush(Duration::from_millis(1)));
        // Reading the device unblocks it.
        let reader = thread::spawn(move || {
            let mut all = vec![];
            read.read_to_end(&mut all).map(|_| all)
        });
        assert_eq!((&woken).read(&mut [0; 1]).unwrap(), 1);
        assert!(console.flush(LIMIT) && !console.is_full(Stream::Stdout, 1));
        drop(console);
        assert_eq!(reader.join().unwrap().unwrap().len() % 1003, 0);
    }

    #[test]
    fn the_other_stream_says_why_one_is_not_complete() {
        let (mut read, write) = io::pipe().unwrap();
        let full = File::options().write(true).open("/dev/full").unwrap();
        let console = Console::to(full.into(), write.into()).unwrap();
        console.push(line(1, b"x"));
        assert!(console.flush(LIMIT));
        console.push(line(1, b"y"));
        assert!(console.flush(LIMIT));
        drop(console);
        let mut shown = String::new();
        read.read_to_string(&mut shown).unwrap();
        assert_eq!(shown.matches("standard output is not complete: No space left on device").count(), 1, "{shown}");
    }

    #[test]
    fn a_device_without_a_reader_discards_everything() {
        let (read, console) = piped();
        drop(read);
        for _ in 0..1000 {
            console.push(line(1, &[b'x'; 1000]));
        }
        assert!(console.flush(LIMIT));
        console.push(line(1, b"y"));
        assert!(console.flush(LIMIT) && !console.is_full(Stream::Stdout, 1));
    }
}
