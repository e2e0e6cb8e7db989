//! The agent's own standard output and error, shared by all workers: one thread a device writes, so that lines never mix
//! and a slow device holds up nobody but those who print to it.

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
use rustix::event::{PollFd, PollFlags, poll};
use rustix::termios::isatty;

use super::lane::{AGENT, Entry, Lane, Owner, What};
use super::plan::Stream;

/// So much of one worker's output waits for a device, in bytes; then the worker waits.
const QUOTA: usize = 256 << 10;
/// So much is written at once, in bytes.
const BATCH: usize = 64 << 10;

/// Where workers' output is shown. Clones are the same console.
#[derive(Clone)]
pub struct Console(Arc<Devices>);

struct Devices {
    stdout: Arc<Device>,
    stderr: Arc<Device>,
    terminal: [bool; 2],
}

/// A file or terminal, with those who wait for it.
struct Device {
    state: Mutex<State>,
    /// Something came, or something was written.
    changed: Condvar,
    /// What is drawn beneath the lines, and must be out of the way while one is written.
    status: OnceLock<ProgressBar>,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Entry>,
    /// What waits of each owner, in bytes.
    waiting: HashMap<Owner, usize>,
    /// Who wants to hear when its owner's share has become small.
    parked: Vec<(Owner, Arc<UnixStream>)>,
    /// Being written just now.
    writing: bool,
    /// How often something was written.
    progress: u64,
    /// Nobody reads it any more.
    gone: bool,
    /// The last console of this device was dropped.
    closed: bool,
}

impl Console {
    /// This process's standard output and error. Nothing else may write to them from now on; the agent's own words go
    /// through [`Self::line`].
    ///
    /// # Errors
    /// The system's own.
    pub fn of_this_process() -> io::Result<Self> {
        // A closed stream swallows everything.
        let own = |fd: io::Result<OwnedFd>| {
            fd.or_else(|_| Ok::<_, io::Error>(File::options().write(true).open("/dev/null")?.into()))
        };
        Self::to(own(io::stdout().as_fd().try_clone_to_owned())?, own(io::stderr().as_fd().try_clone_to_owned())?)
    }

    /// A console of two open files. When they are the same one (a terminal, or `2>&1`), lines of both take turns.
    ///
    /// # Errors
    /// The system's own.
    pub fn to(stdout: OwnedFd, stderr: OwnedFd) -> io::Result<Self> {
        let terminal = [isatty(&stdout), isatty(&stderr)];
        let (stdout, stderr) = (File::from(stdout), File::from(stderr));
        let identity = |file: &File| file.metadata().map(|about| (about.dev(), about.ino(), about.rdev()));
        if identity(&stdout)? == identity(&stderr)? {
            let both = Device::start([stdout, stderr])?;
            return Ok(Console(Arc::new(Devices { stdout: Arc::clone(&both), stderr: both, terminal })));
        }
        let stdout = Device::start([stdout.try_clone()?, stdout])?;
        let stderr = Device::start([stderr.try_clone()?, stderr])?;
        Ok(Console(Arc::new(Devices { stdout, stderr, terminal })))
    }

    /// Whether both streams go to the same place: a terminal, or `2>&1`.
    pub fn is_one_device(&self) -> bool {
        Arc::ptr_eq(&self.0.stdout, &self.0.stderr)
    }

    /// Whether a person sees this stream.
    pub fn is_terminal(&self, stream: Stream) -> bool {
        self.0.terminal[stream as usize]
    }

    /// From now on lines are shown above `bar`, which is drawn on stderr. There is no place for unfinished lines then.
    pub fn draw_above(&self, bar: &ProgressBar) {
        for device in [&self.0.stdout, &self.0.stderr] {
            // There is one bar for a console's whole life.
            let _ = device.status.set(bar.clone());
        }
    }

    /// Whether an unfinished line may stand there until it goes on.
    pub(super) fn shows_open_lines(&self, stream: Stream) -> bool {
        self.is_terminal(stream) && self.device(stream).status.get().is_none()
    }

    /// Shows the agent's own words, each line a whole one. Never waits: what is too much for a device that does not take
    /// it is left out.
    pub fn line(&self, stream: Stream, text: &[u8]) {
        let text = text.strip_suffix(b"\n").unwrap_or(text);
        for line in text.split(|byte| *byte == b'\n') {
            if !self.is_full(stream, AGENT) {
                let what = What::Line(line.to_vec());
                self.push(Entry { owner: AGENT, stream, prefix: vec![], what });
            }
        }
    }

    /// Waits until everything is written; gives up when nothing was written for `limit`. Whether all was.
    pub fn flush(&self, limit: Duration) -> bool {
        self.0.stdout.flush(limit) & self.0.stderr.flush(limit)
    }

    pub(super) fn push(&self, entry: Entry) {
        self.device(entry.stream).push(entry);
    }

    pub(super) fn is_full(&self, stream: Stream, owner: Owner) -> bool {
        self.device(stream).lock().waiting.get(&owner).is_some_and(|waiting| *waiting >= QUOTA)
    }

    /// Whether the owner must wait; then `wake` is written to when it need no longer.
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
    fn start(files: [File; 2]) -> io::Result<Arc<Self>> {
        let device = Arc::new(Device { state: Mutex::default(), changed: Condvar::new(), status: OnceLock::new() });
        let writer = Arc::clone(&device);
        thread::Builder::new().name("console".into()).spawn(move || writer.write(files))?;
        Ok(device)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is whole after each statement; a panic elsewhere does not spoil it.
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

    /// The writer's thread.
    fn write(&self, mut files: [File; 2]) {
        let mut lane = Lane::default();
        while let Some(batch) = self.take() {
            let written = match self.status.get() {
                Some(bar) => bar.suspend(|| write_batch(&mut lane, &batch, &mut files)),
                None => write_batch(&mut lane, &batch, &mut files),
            };
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
                // A full socket already wakes.
                let _ = (&**wake).write(b".");
            }
            !small
        });
        self.changed.notify_all();
    }
}

impl Drop for Devices {
    /// The writers end when they have written what waits. Nobody waits for them: see [`Console::flush`].
    fn drop(&mut self) {
        for device in [&self.stdout, &self.stderr] {
            device.lock().closed = true;
            device.changed.notify_all();
        }
    }
}

fn write_batch(lane: &mut Lane, batch: &[Entry], files: &mut [File; 2]) -> io::Result<()> {
    let mut bytes = vec![];
    let mut stream = Stream::Stdout;
    for entry in batch {
        if entry.stream != stream {
            write_all(&mut files[stream as usize], &bytes)?;
            bytes.clear();
            stream = entry.stream;
        }
        lane.show(entry, &mut bytes);
    }
    write_all(&mut files[stream as usize], &bytes)
}

fn write_all(file: &mut File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // Somebody else who has this terminal or pipe open made it so.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                poll(&mut [PollFd::new(file, PollFlags::OUT)], None)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn line(owner: Owner, text: &[u8]) -> Entry {
        Entry { owner, stream: Stream::Stdout, prefix: b"> ".to_vec(), what: What::Line(text.to_vec()) }
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
    fn a_device_that_takes_nothing_holds_up_only_the_one_who_fills_it() {
        let (mut read, console) = piped();
        let (wake, woken) = UnixStream::pair().unwrap();
        let wake = Arc::new(wake);
        while !console.is_full(Stream::Stdout, 1) {
            console.push(line(1, &[b'x'; 1000]));
        }
        assert!(console.park(Stream::Stdout, 1, &wake));
        assert!(!console.park(Stream::Stdout, 2, &wake));
        assert!(!console.flush(Duration::from_millis(1)));
        // Whoever reads the device sets it free again.
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
    fn a_device_that_nobody_reads_any_more_swallows_everything() {
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
