//! Deadlines that do not depend on the machine's speed or load: a wait ends when the processes that it waits for stop
//! making progress.
//!
//! A deadline in seconds assumes a speed. On a busy machine it ends work that would have succeeded, and on a fast one
//! it lets a hang last for minutes. CPU time distinguishes a hang from slow work: a process that computes gets some,
//! however little, and one that waits for a message gets none. So [`Watchdog`] reads from `/proc` how much CPU time the
//! processes of a test have used, and gives up when they used almost none for a minute. [`StallDetector`] applies the
//! same rule to any processes. Where a deadline in seconds is required, [`scaled`] makes it longer on a busy machine,
//! and [`RunQueue`] measures how much time processes spent waiting for a core.
//!
//! Processes on other machines are not covered.
//! Below: who uses the machine, by the threads of processes, how long they waited for a core, and how busy it is (proc_pid_stat(5)).

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::Read;
use std::process::{Command, ExitStatus, Output, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::KillOnDrop;
use crate::proc::{self, Schedule, Stat};

/// Detects that processes have stopped making progress.
#[derive(Debug)]
pub struct StallDetector {
    threshold: Duration,
    negligible: Duration,
    since: Option<(Instant, Duration)>,
}

impl StallDetector {
    /// A stall lasts at least `threshold`. In that time, threads that only poll use less than `negligible` of CPU time.
    pub fn new(threshold: Duration, negligible: Duration) -> Self {
        StallDetector { threshold, negligible, since: None }
    }

    /// How long processes must be stalled.
    pub fn threshold(&self) -> Duration {
        self.threshold
    }

    /// How long the processes have been stalled.
    fn lasted(&self, now: Instant) -> Duration {
        self.since.map_or(Duration::ZERO, |(since, _)| now - since)
    }

    /// Returns true if the processes have been stalled until `now`. `used` is their CPU time so far; `None` means that
    /// one of them is known to be awake. Call it often.
    pub fn is_stalled(&mut self, used: Option<Duration>, now: Instant) -> bool {
        match (self.since, used) {
            // Less than before: a process has ended, which is progress, too.
            (Some((since, begun)), Some(used)) if (begun..=begun + self.negligible).contains(&used) => {
                now - since >= self.threshold
            }
            (_, used) => {
                self.since = used.map(|used| (now, used));
                false
            }
        }
    }
}

/// Longer than any test sleeps.
const STALL: Duration = Duration::from_secs(60);
/// More than the CPU time that polling threads use in `STALL`. A process that computes gets more, even if it shares a
/// core with [`SHARED`] others.
const NEGLIGIBLE: Duration = Duration::from_secs(2);
/// Processes on each core beyond which a stall must last longer, in proportion.
const SHARED: f64 = 5.0;
/// CPU time after which a wait ends with an error. The longest test uses a quarter.
const TOO_MUCH: Duration = Duration::from_secs(20 * 60);
/// The minimum interval between two looks at the processes.
const LOOK: Duration = Duration::from_millis(500);

/// Watches this process and all of its descendants from the beginning of a wait.
#[derive(Debug)]
pub struct Watchdog {
    stall: StallDetector,
    begun: Instant,
    used_before: Duration,
    too_much: Duration,
    looked: Instant,
}

/// Why a wait ended before what it waited for.
pub struct Stalled {
    why: String,
    waited: Duration,
    alive: Vec<String>,
}

impl Watchdog {
    /// Starts to watch now.
    pub fn new() -> Self {
        let now = Instant::now();
        Watchdog {
            stall: StallDetector::new(STALL, NEGLIGIBLE),
            begun: now,
            used_before: used(),
            too_much: TOO_MUCH,
            looked: now,
        }
    }

    /// Call it often, from the waiting thread: the CPU time of that thread does not count.
    ///
    /// # Errors
    /// [`Stalled`] if no process has used a core for a minute, or if they have used 20 minutes of CPU time.
    pub fn look(&mut self) -> Result<(), Stalled> {
        let now = Instant::now();
        if now - self.looked < LOOK {
            return Ok(());
        }
        self.looked = now;
        let used = used();
        if self.stall.is_stalled(Some(used), now) {
            let lasted = self.stall.lasted(now);
            if lasted >= self.stall.threshold().mul_f64(crowding()) {
                return Err(self.stalled(format!("nothing has used a core for {} s", lasted.as_secs())));
            }
        }
        if used.saturating_sub(self.used_before) > self.too_much {
            return Err(self.stalled(format!("{} s on cores were not enough", self.too_much.as_secs())));
        }
        Ok(())
    }

    fn stalled(&self, why: String) -> Stalled {
        let describe = |(pid, stat): (i32, Stat)| {
            format!("{} ({pid}, state {}, {:.1} s on a core)", stat.name, stat.state, stat.used.as_secs_f64())
        };
        Stalled { why, waited: self.begun.elapsed(), alive: family().into_iter().map(describe).collect() }
    }
}

impl Default for Watchdog {
    fn default() -> Self {
        Self::new()
    }
}

/// By how much more than [`SHARED`] the cores are shared by processes that are ready to run or wait for a disk, on the average of a minute;
/// at least 1, also where the kernel does not say.
fn crowding() -> f64 {
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    (load_averages()[0] / cores / SHARED).max(1.0)
}

/// How many threads were ready to run or waited for a disk, on the average of 1, 5 and 15 minutes; zeros where the kernel does not say.
pub fn load_averages() -> [f64; 3] {
    parse_averages(&fs::read_to_string("/proc/loadavg").unwrap_or_default())
}

/// Parses the numbers at the start of `/proc/loadavg` (proc(5)).
fn parse_averages(text: &str) -> [f64; 3] {
    let mut numbers = text.split_ascii_whitespace().map(|word| word.parse().unwrap_or(0.0));
    [(); 3].map(|()| numbers.next().unwrap_or(0.0))
}

/// CPU time of this process and its descendants, without that of this thread.
fn used() -> Duration {
    let all: Duration = family().values().map(|stat| stat.used + stat.used_by_children).sum();
    all.saturating_sub(Schedule::of_this_thread().running)
}

impl fmt::Display for Stalled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "waited for {:.0} s: {}; alive: {}", self.waited.as_secs_f64(), self.why, self.alive.join(", "))
    }
}

/// Same as `Display`, because `unwrap` prints it in the message of a panic.
impl fmt::Debug for Stalled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Stalled {}

/// Interval between two looks at the processes, and between two checks of the condition.
const PAUSE: Duration = Duration::from_millis(500);
const POLL: Duration = Duration::from_millis(5);

/// Receives from a channel; `None` if all senders are gone.
///
/// # Errors
/// [`Stalled`] if the processes are stalled.
pub fn receive<T>(receiver: &Receiver<T>) -> Result<Option<T>, Stalled> {
    let mut watchdog = Watchdog::new();
    loop {
        match receiver.recv_timeout(PAUSE) {
            Ok(received) => return Ok(Some(received)),
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
            Err(RecvTimeoutError::Timeout) => watchdog.look()?,
        }
    }
}

/// Waits until `holds` returns true.
///
/// # Errors
/// [`Stalled`] if the processes are stalled.
pub fn until(mut holds: impl FnMut() -> bool) -> Result<(), Stalled> {
    let mut watchdog = Watchdog::new();
    loop {
        let begun = Instant::now();
        if holds() {
            return Ok(());
        }
        // A condition that starts a process, or reads all of `/proc`, takes CPU time from the processes that it waits for.
        let pause = POLL.max(4 * begun.elapsed()).min(PAUSE);
        watchdog.look()?;
        std::thread::sleep(pause);
    }
}

/// Reads `pipe` until every process that holds its other end is gone, and sends the bytes.
pub fn drain(mut pipe: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if pipe.read_to_end(&mut bytes).is_ok() {
            // The receiver is gone if the wait has ended with an error.
            let _ = sender.send(bytes);
        }
    });
    receiver
}

/// A process whose output is captured. It is killed and reaped if this is dropped before its end, as in a test that fails. What cannot be
/// started or does not end is a panic.
pub struct Running {
    child: KillOnDrop,
    stdout: Receiver<Vec<u8>>,
    stderr: Receiver<Vec<u8>>,
}

impl Running {
    pub fn start(mut command: Command) -> Self {
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = KillOnDrop(child.unwrap_or_else(|error| panic!("cannot start {command:?}: {error}")));
        let (stdout, stderr) = (child.0.stdout.take(), child.0.stderr.take());
        let (stdout, stderr) = (stdout.expect("it was piped"), stderr.expect("it was piped"));
        Running { child, stdout: drain(stdout), stderr: drain(stderr) }
    }

    pub fn pid(&self) -> u32 {
        self.child.0.id()
    }

    /// How the process itself has ended, if it has.
    pub fn exit(&mut self) -> Option<ExitStatus> {
        self.child.0.try_wait().expect("a child can be waited for")
    }

    pub fn kill(&mut self) {
        // An error means that it has ended.
        let _ = self.child.0.kill();
    }

    /// Waits until the process *and all processes that inherited its output* have ended. One that is left behind ends the wait with a panic.
    pub fn end(mut self) -> Output {
        let all = |pipe: &Receiver<Vec<u8>>| {
            let received = receive(pipe);
            received
                .unwrap_or_else(|why| panic!("a process or one of its children did not end: {why}"))
                .unwrap_or_default()
        };
        let (stdout, stderr) = (all(&self.stdout), all(&self.stderr));
        Output { status: self.child.0.wait().expect("a child can be waited for"), stdout, stderr }
    }
}

/// Runs `command` to its end: see [`Running`].
pub fn output(command: Command) -> Output {
    Running::start(command).end()
}

/// Threads of a process: whether one of them is awake, and their CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadActivity {
    /// True if a thread runs, is ready to run, is stopped, or waits for a disk.
    pub awake: bool,
    /// CPU time so far, in user and kernel mode.
    pub used: Duration,
    /// How often they were given a core; 0 if the kernel does not keep this number.
    pub turns: u64,
}

/// Reads the threads of a process; `None` if it has ended.
pub fn threads(pid: u32) -> Option<ThreadActivity> {
    threads_except(pid, &[])
}

/// Like `threads`, without the threads of these names; also `None` if there are no others.
pub fn threads_except(pid: u32, names: &[&str]) -> Option<ThreadActivity> {
    let pid = i32::try_from(pid).ok()?;
    let mut stats = proc::threads(pid);
    stats.retain(|thread| !names.contains(&thread.name.as_str()));
    let counts = |id: &i32| stats.iter().any(|thread| thread.pid == *id);
    let turns = Schedule::of_threads(pid).iter().filter(|(id, _)| counts(id)).map(|(_, schedule)| schedule.turns).sum();
    let awake = stats.iter().any(|thread| thread.state != 'S');
    (!stats.is_empty()).then(|| ThreadActivity { awake, used: stats.iter().map(|thread| thread.used).sum(), turns })
}

/// All descendants of these processes that have not ended.
pub fn descendants(ancestors: &[u32]) -> Vec<u32> {
    let parents = proc::parents();
    let below = ancestors.iter().flat_map(|ancestor| proc::descendants(*ancestor as i32, &parents));
    below.filter(|pid| Stat::of(*pid).is_some_and(|stat| !stat.is_dead())).map(|pid| pid as u32).collect()
}

/// This process and all of its descendants.
pub(super) fn family() -> BTreeMap<i32, Stat> {
    let this = std::process::id() as i32;
    let mut all: BTreeMap<i32, Stat> = proc::pids().filter_map(|pid| Some((pid, Stat::of(pid)?))).collect();
    let below = proc::descendants(this, &all.values().map(|stat| (stat.pid, stat.parent)).collect());
    all.retain(|pid, _| *pid == this || below.contains(pid));
    all
}

/// The time that processes were ready to run but waited for a core. A deadline in seconds should not count it.
#[derive(Debug, Default)]
pub struct RunQueue {
    threads: BTreeMap<(u32, i32), Duration>,
}

impl RunQueue {
    /// The longest time that a thread of these processes has waited so far, never more than the elapsed time. For a
    /// thread that has ended, the last call that saw it counts. Zero if the kernel does not keep these numbers.
    pub fn lost(&mut self, pids: &[u32]) -> Duration {
        pids.iter().for_each(|pid| self.look(*pid));
        let of = |pid: &u32| {
            self.threads.iter().filter(|((of, _), _)| of == pid).map(|(_, lost)| *lost).max().unwrap_or_default()
        };
        pids.iter().map(of).max().unwrap_or_default()
    }

    fn look(&mut self, pid: u32) {
        let threads = Schedule::of_threads(pid as i32);
        self.threads.extend(threads.into_iter().map(|(thread, of)| ((pid, thread), of.waiting)));
    }
}

/// CPU time after which the measurement ends: several of the scheduler's time slices.
const PROBE: Duration = Duration::from_millis(40);

/// A process that sleeps until a deadline uses no CPU time: the sleep must be short enough that no watchdog ends the
/// process.
const LONGEST: Duration = Duration::from_secs(30);

/// Returns `duration` multiplied by this process's slowdown from waiting for a core, at most 30 s. For deadlines that
/// are meant to expire, or that libtorch requires. The first call measures the slowdown, which takes 40 ms of CPU time.
pub fn scaled(duration: Duration) -> Duration {
    static FACTOR: OnceLock<f64> = OnceLock::new();
    lengthened(duration, *FACTOR.get_or_init(factor))
}

fn lengthened(duration: Duration, factor: f64) -> Duration {
    duration.mul_f64(factor).min(LONGEST).max(duration)
}

/// The time that this thread ran or waited for a core, divided by the time that it ran. 1 if the kernel does not keep
/// these numbers.
fn factor() -> f64 {
    let begun = Schedule::of_this_thread();
    let wall = std::time::Instant::now();
    loop {
        let now = Schedule::of_this_thread();
        let (on, waiting) = (now.running - begun.running, now.waiting.saturating_sub(begun.waiting));
        if on >= PROBE {
            return (on + waiting).as_secs_f64() / on.as_secs_f64();
        }
        if on.is_zero() && wall.elapsed() > PROBE {
            return 1.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::KillOnDrop;
    use crate::proc::Status;

    #[test]
    fn any_progress_ends_a_stall() {
        let begin = Instant::now();
        let mut stall = StallDetector::new(Duration::from_secs(5), Duration::from_millis(100));
        let mut look = |used: Option<u64>, seconds| {
            stall.is_stalled(used.map(Duration::from_millis), begin + Duration::from_secs(seconds))
        };
        assert!(!look(Some(50), 0) && !look(Some(60), 4));
        assert!(look(Some(150), 5), "little was used in 5 s");
        assert!(!look(None, 6), "a process is awake");
        assert!(!look(Some(60), 7) && !look(Some(900), 12), "a process has run");
        assert!(!look(Some(900), 16) && look(Some(900), 17));
        assert!(!look(Some(400), 18), "a process has ended");
        assert!(!look(Some(400), 22) && look(Some(400), 23));
    }

    #[test]
    fn ends_a_wait_for_a_sleeping_process_and_names_it() {
        let mut sleeper = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        while Stat::of(sleeper.id() as i32).unwrap().state != 'S' {
            std::thread::yield_now();
        }
        let stall = StallDetector::new(Duration::from_secs(1), NEGLIGIBLE);
        let mut watchdog = Watchdog { stall, ..Watchdog::new() };
        let why = loop {
            if let Err(why) = watchdog.look() {
                break why.to_string();
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        assert!(why.contains(&format!("sleep ({}, state S, 0.0 s on a core)", sleeper.id())), "{why}");
    }

    #[test]
    fn ends_a_wait_that_uses_too_much_cpu_time() {
        let now = Instant::now() - 2 * LOOK;
        let mut watchdog = Watchdog { looked: now, ..Watchdog::new() };
        watchdog.too_much = Duration::ZERO;
        let on_core = || Schedule::of_this_thread().running;
        std::thread::spawn(move || while on_core() < Duration::from_millis(50) {}).join().unwrap();
        assert!(watchdog.look().unwrap_err().to_string().contains("0 s on cores were not enough"));
    }

    #[test]
    fn reads_the_load() {
        assert_eq!(parse_averages("3.10 2.00 1.50 4/300 1234\n"), [3.1, 2.0, 1.5]);
        assert_eq!(parse_averages(""), [0.0; 3]);
        assert!(load_averages().iter().all(|load| *load >= 0.0) && crowding() >= 1.0);
    }

    #[test]
    fn names_the_processes_that_are_alive() {
        let text = Watchdog::new().stalled("no reason".into()).to_string();
        assert!(text.contains(&format!("({}, state ", std::process::id())), "{text}");
        assert!(text.starts_with("waited for 0 s: no reason; alive: "), "{text}");
    }

    #[test]
    fn does_not_count_the_waiting_thread() {
        let (begun, before) = (Instant::now(), used());
        while begun.elapsed() < Duration::from_millis(300) {}
        // Other tests of this process may run at the same time; under nextest there are none. The process's time is counted in
        // ticks and this thread's in nanoseconds, so the difference can become smaller.
        assert!(used().saturating_sub(before) < Duration::from_millis(200) || std::env::var_os("NEXTEST").is_none());
    }

    #[test]
    fn returns_the_output_of_a_command_and_its_exit_code() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo out; echo err >&2; exit 3"]);
        let output = output(shell);
        assert_eq!((output.status.code(), &*output.stdout, &*output.stderr), (Some(3), &b"out\n"[..], &b"err\n"[..]));
    }

    #[test]
    fn reports_that_all_senders_are_gone() {
        let (sender, receiver) = channel();
        sender.send(1).unwrap();
        drop(sender);
        assert_eq!(receive(&receiver).unwrap(), Some(1));
        assert_eq!(receive(&receiver).unwrap(), None);
    }

    #[test]
    fn sees_that_this_process_is_awake() {
        assert!(threads(std::process::id()).unwrap().awake);
        assert_eq!(threads(u32::MAX), None);
    }

    #[test]
    fn leaves_out_threads_of_a_name() {
        let mut sleeper = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let pid = sleeper.id();
        // Until it executes `sleep`, the child has this program's name.
        while Stat::of(pid as i32).unwrap().name != "sleep" {
            std::thread::yield_now();
        }
        assert_eq!(
            [threads_except(pid, &["wake"]).is_some(), threads_except(pid, &["wake", "sleep"]).is_some()],
            [true, false]
        );
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
    }

    #[test]
    fn finds_grandchildren() {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", "sleep 60 & echo; wait"]).stdout(std::process::Stdio::piped());
        let mut child = shell.spawn().unwrap();
        let pid = child.id() as i32;
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        let (family, below) = (family(), descendants(&[std::process::id()]));
        assert_eq!(family[&pid].name, "sh");
        let (grandchild, _) = family.iter().find(|(_, stat)| stat.parent == pid).unwrap();
        assert!(below.contains(&(pid as u32)) && below.contains(&(*grandchild as u32)));
        assert!(std::process::Command::new("kill").arg(grandchild.to_string()).status().unwrap().success());
        child.wait().unwrap();
    }

    /// Two loops share one core: each gets half of it and waits for the other half.
    #[test]
    fn counts_the_time_while_another_process_has_the_core() {
        let one_core = "while :; do :; done";
        let looping = || {
            let mut shell = Command::new("taskset");
            shell.args(["-c", &first_core(), "sh", "-c", one_core]);
            KillOnDrop(shell.spawn().unwrap())
        };
        let pair = [looping(), looping()];
        let pids = [pair[0].0.id(), pair[1].0.id()];
        let (mut queue, enough) = (RunQueue::default(), Duration::from_millis(100));
        crate::watchdog::until(|| queue.lost(&pids) >= enough).unwrap();
        assert!(threads(pids[0]).unwrap().awake);
    }

    /// The first core that this process may use.
    fn first_core() -> String {
        let status = Status::of_this_process().unwrap();
        status.field("Cpus_allowed_list").unwrap().split([',', '-']).next().unwrap().to_owned()
    }

    #[test]
    fn never_shortens_a_duration() {
        assert!(factor() >= 1.0);
        assert!(scaled(Duration::from_secs(1)) >= Duration::from_secs(1));
    }

    #[test]
    fn never_exceeds_what_a_watchdog_allows() {
        let seconds = Duration::from_secs;
        assert_eq!(lengthened(seconds(8), 2.0), seconds(16));
        assert_eq!(lengthened(seconds(8), 9.0), seconds(30));
        assert_eq!(lengthened(seconds(40), 2.0), seconds(40));
    }
}
