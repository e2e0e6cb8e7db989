//! Where a rank's time goes: waiting for other ranks, waiting for batches, or its own work; and which ranks are late.
//!
//! All ranks take the same time for a step, since fast ranks wait in their collectives for slow ones. So the rank that all
//! others wait for is the one that waits least itself. Every rank adds up its waits (`Clock`), its reporter's thread
//! publishes the sums once a second (`Publisher`), and the reporter of rank 0 compares them and reports findings that hold for several
//! intervals (`watch.rs`). This adds no collective or store operation to a step.
//!
//! Ranks that share memory also know who arrives last in each collective (`Arrivals`); over several hosts, ranks know this about
//! those on their own host, and otherwise only that they wait for another host. So a rank that all others wait for is reported while
//! they wait (`Stalls`), and a rank that nobody waits for is never reported as late.
//!
//! Only the thread that joined the default group is measured. Waits on NCCL take place on the GPU, so they are not seen, and
//! nothing is reported.

mod watch;

use std::cell::RefCell;
use std::fs;
use std::ops::Sub;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use watch::{RankSums, Reading, Stalls, Watch};

use crate::error::Result;
use crate::ffi::{self, ArrivalsHandle, GroupHandle};
use crate::{Rank, Store, WorldSize};

pub use watch::{Cause, Finding};

/// How often a rank publishes its sums, in milliseconds.
static PERIOD: AtomicU64 = AtomicU64::new(1000);

/// From now on, ranks of this process that join a job publish their sums this often, instead of once a second. The compared intervals
/// are shorter in proportion.
pub fn publish_every(period: Duration) {
    PERIOD.store(u64::try_from(period.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
}

/// What each rank publishes once a second.
#[derive(Debug, Serialize, Deserialize)]
struct Published {
    host: String,
    sums: Sums,
    waits: Waits,
}

/// Publishes a rank's sums in the job's store, and on rank 0 compares the sums of all ranks, on the thread that answers desync
/// reports.
#[derive(Debug)]
pub(crate) struct Publisher {
    clock: Arc<Clock>,
    host: String,
    period: Duration,
    due: Instant,
    key: String,
    /// Only on rank 0.
    collects: Option<Collects>,
}

#[derive(Debug)]
struct Collects {
    /// In rank order.
    keys: Vec<String>,
    watch: Watch,
    stalls: Stalls,
}

impl Publisher {
    /// A publisher for the rank whose training thread `clock` measures. Nothing is sent before a period has passed.
    pub(crate) fn new(clock: Arc<Clock>, rank: Rank, world: WorldSize) -> Self {
        let period = Duration::from_millis(PERIOD.load(Ordering::Relaxed));
        let collects = || Collects {
            keys: world.ranks().map(key).collect(),
            watch: Watch::new(period),
            stalls: Stalls::default(),
        };
        Publisher {
            clock,
            host: String::new(),
            period,
            due: Instant::now() + period,
            key: key(rank),
            collects: rank.is_zero().then(collects),
        }
    }

    /// Publishes the rank's sums if they are due, and on rank 0 compares the sums of all ranks.
    ///
    /// # Errors
    /// The store is gone.
    pub(crate) fn tick(&mut self, store: &Store) -> Result<()> {
        let now = Instant::now();
        if now < self.due {
            return Ok(());
        }
        self.due = now + self.period;
        if self.host.is_empty() {
            self.host = hostname();
        }
        let own = Published { host: self.host.clone(), sums: self.clock.sums(), waits: self.clock.waits() };
        // Strings and numbers always have a JSON form.
        store.set(&self.key, serde_json::to_vec(&own).unwrap_or_default())?;
        match &mut self.collects {
            Some(collects) => collects.tick(store),
            None => Ok(()),
        }
    }

    /// Reports a summary at the end of the job.
    pub(crate) fn finish(&self) {
        let lines = self.collects.iter().flat_map(|collects| collects.watch.at_end());
        lines.for_each(|line| say(&line, None));
    }
}

impl Collects {
    fn tick(&mut self, store: &Store) -> Result<()> {
        if !store.check(&self.keys)? {
            return Ok(());
        }
        let values = store.multi_get(&self.keys)?;
        let reading: Option<Reading> = values.iter().map(|value| rank_sums(value)).collect();
        if let Some(reading) = reading {
            let findings = self.stalls.take(&reading).into_iter().chain(self.watch.take(reading));
            findings.for_each(|finding| say(&finding.to_string(), Some(&finding)));
        }
        Ok(())
    }
}

fn rank_sums(value: &[u8]) -> Option<RankSums> {
    let Published { host, sums, waits } = serde_json::from_slice(value).ok()?;
    Some(RankSums { host, sums, waits })
}

fn key(rank: Rank) -> String {
    format!("lockstep/stragglers/{rank}")
}

fn hostname() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").map_or_else(|_| "localhost".into(), |name| name.trim().to_owned())
}

type Listener = Box<dyn Fn(&str, Option<&Finding>) + Send>;

static LISTENER: Mutex<Option<Listener>> = Mutex::new(None);

/// From now on, passes rank 0's findings to `listener`, each as one line without a line break, instead of printing them to stderr.
/// The summary at the end of a job comes without a finding.
pub fn listen(listener: impl Fn(&str, Option<&Finding>) + Send + 'static) {
    *LISTENER.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(listener));
}

fn say(line: &str, finding: Option<&Finding>) {
    match &*LISTENER.lock().unwrap_or_else(PoisonError::into_inner) {
        Some(listener) => listener(line, finding),
        None => eprintln!("warning: {line}"),
    }
}

thread_local! {
    static CLOCK: RefCell<Option<Arc<Clock>>> = const { RefCell::new(None) };
}

/// What a thread did since it joined its job. Times are in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sums {
    /// The whole time.
    pub(crate) wall: f64,
    /// Waiting in collectives and for messages, including their transfer.
    pub(crate) waited: f64,
    /// The number of these waits.
    pub(crate) waits: u64,
    /// Waiting for batches, or loading them.
    pub(crate) loading: f64,
    /// Running on a processor.
    pub(crate) running: f64,
    /// Ready to run, while other threads had the processors.
    pub(crate) queued: f64,
}

impl Sub for Sums {
    type Output = Self;

    /// The differences from `earlier`.
    fn sub(self, earlier: Self) -> Self {
        Sums {
            wall: self.wall - earlier.wall,
            waited: self.waited - earlier.waited,
            waits: self.waits.saturating_sub(earlier.waits),
            loading: self.loading - earlier.loading,
            running: self.running - earlier.running,
            queued: self.queued - earlier.queued,
        }
    }
}

/// Adds up the times of the thread that created it; other threads read them.
#[derive(Debug)]
pub(crate) struct Clock {
    begun: Instant,
    /// In nanoseconds.
    waited: AtomicU64,
    waits: AtomicU64,
    /// In nanoseconds.
    loading: AtomicU64,
    /// The file with the thread's times from the kernel's scheduler (Documentation/scheduler/sched-stats.rst).
    schedstat: Option<PathBuf>,
    /// The waits in the job's default group, if its ranks share memory, or the ranks of each host do.
    arrivals: OnceLock<Arrivals>,
}

impl Clock {
    /// Measures the calling thread from now on, in place of an earlier clock.
    pub(crate) fn of_this_thread() -> Arc<Self> {
        let schedstat = fs::read_link("/proc/thread-self").ok();
        let clock = Arc::new(Clock {
            begun: Instant::now(),
            waited: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            loading: AtomicU64::new(0),
            schedstat: schedstat.map(|thread| Path::new("/proc").join(thread).join("schedstat")),
            arrivals: OnceLock::new(),
        });
        CLOCK.set(Some(Arc::clone(&clock)));
        clock
    }

    /// The sums so far. A wait counts when it has ended.
    pub(crate) fn sums(&self) -> Sums {
        let [running, queued] = self.schedstat.as_deref().and_then(scheduled).unwrap_or_default();
        Sums {
            wall: self.begun.elapsed().as_secs_f64(),
            waited: seconds(self.waited.load(Ordering::Relaxed)),
            waits: self.waits.load(Ordering::Relaxed),
            loading: seconds(self.loading.load(Ordering::Relaxed)),
            running,
            queued,
        }
    }

    /// From now on, also reads which ranks the rank waits for.
    pub(crate) fn attach(&self, arrivals: Arrivals) {
        // A job has one default group.
        let _ = self.arrivals.set(arrivals);
    }

    /// The rank's waits for others so far.
    pub(super) fn waits(&self) -> Waits {
        self.arrivals.get().and_then(Arrivals::read).unwrap_or_default()
    }

    fn add(&self, what: What, time: Duration) {
        let sum = match what {
            What::Wait => &self.waited,
            What::Load => &self.loading,
        };
        sum.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
        if what == What::Wait {
            self.waits.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The seconds that a thread ran on a processor and that it waited for one.
fn scheduled(schedstat: &Path) -> Option<[f64; 2]> {
    let text = fs::read_to_string(schedstat).ok()?;
    let mut numbers = text.split_whitespace().map(|number| number.parse().ok().map(seconds));
    Some([numbers.next()??, numbers.next()??])
}

fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Wait,
    Load,
}

/// Counts the time until it is dropped, if the thread is measured.
#[derive(Debug)]
#[must_use = "the time until it is dropped counts"]
pub struct Timed {
    what: What,
    begun: Instant,
}

impl Drop for Timed {
    fn drop(&mut self) {
        add(self.what, self.begun.elapsed());
    }
}

/// Counts the time until the result is dropped as a wait for a batch.
pub fn loading() -> Timed {
    Timed { what: What::Load, begun: Instant::now() }
}

/// Counts the time until the result is dropped as a wait for other ranks.
pub(crate) fn waiting() -> Timed {
    Timed { what: What::Wait, begun: Instant::now() }
}

/// Counts a wait for other ranks.
pub(crate) fn count_wait(time: Duration) {
    add(What::Wait, time);
}

fn add(what: What, time: Duration) {
    // A thread that is ending has no clock.
    let _ = CLOCK.try_with(|clock| {
        if let Some(clock) = &*clock.borrow() {
            clock.add(what, time);
        }
    });
}

// The ranks that a rank waits for in the collectives of a group that shares memory, on one host or on each of several.

/// The target of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Awaited {
    /// The late rank.
    Rank(usize),
    /// Some rank on another host.
    OtherHost,
}

/// `shm::kElsewhere`.
const ELSEWHERE: i32 = -2;

impl Awaited {
    fn of(number: i32) -> Option<Self> {
        if number == ELSEWHERE {
            return Some(Awaited::OtherHost);
        }
        usize::try_from(number).ok().map(Awaited::Rank)
    }
}

/// A rank's waits for the others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Waits {
    /// Seconds that it has waited for each rank on its own host; `None` for the others. Empty if the group does not record
    /// waits.
    #[serde(default)]
    pub(crate) seconds: Vec<Option<f64>>,
    /// The target of the wait in progress, and its seconds so far.
    #[serde(default)]
    pub(crate) now: Option<(Awaited, f64)>,
}

impl Waits {
    /// The waits since `earlier`.
    pub(super) fn since(&self, earlier: &Self) -> Self {
        let known = self.seconds.len() == earlier.seconds.len();
        let pairs = self.seconds.iter().zip(&earlier.seconds).filter(|_| known);
        let seconds = pairs.map(|(now, then)| Some((*now)? - (*then)?)).collect();
        Waits { seconds, now: self.now }
    }
}

/// Reads a group's waits, from any thread, even when the group is gone.
#[derive(Debug)]
pub(crate) struct Arrivals {
    handle: NonNull<ArrivalsHandle>,
    world: WorldSize,
}

// SAFETY: the handle only has a weak reference to atomic counters.
unsafe impl Send for Arrivals {}
// SAFETY: as above.
unsafe impl Sync for Arrivals {}

impl Arrivals {
    /// `None` unless the group's ranks share memory, or the ranks of each host do.
    ///
    /// # Safety
    /// The group of `world` ranks must be alive.
    pub(crate) unsafe fn of(group: *const GroupHandle, world: WorldSize) -> Option<Self> {
        // SAFETY: the caller keeps the group alive for the call; the handle has its own references.
        let handle = NonNull::new(unsafe { ffi::lc_group_arrivals(group) })?;
        Some(Arrivals { handle, world })
    }

    /// `None` if the group is gone.
    pub(crate) fn read(&self) -> Option<Waits> {
        let (mut seconds, mut rank, mut time) = (vec![0.0; self.world.get()], -1, 0.0);
        let (list, n) = (seconds.as_mut_ptr(), seconds.len());
        // SAFETY: the handle is alive; `n` numbers and two more may be written.
        let read = unsafe { ffi::lc_arrivals_read(self.handle.as_ptr(), list, n, &mut rank, &mut time) };
        let known = |seconds: f64| Some(seconds).filter(|seconds| !seconds.is_nan());
        let seconds = seconds.into_iter().map(known).collect();
        read.then(|| Waits { seconds, now: Awaited::of(rank).map(|rank| (rank, time)) })
    }

    /// The time that the rank has waited for each rank; 0 where it is not known.
    pub(crate) fn waited(&self) -> Option<Vec<Duration>> {
        let waits = self.read()?;
        Some(waits.seconds.iter().map(|seconds| Duration::from_secs_f64(seconds.unwrap_or(0.0).max(0.0))).collect())
    }
}

impl Drop for Arrivals {
    fn drop(&mut self) {
        // SAFETY: the handle came from the shim and is freed once.
        unsafe { ffi::lc_arrivals_free(self.handle.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds_up_waits_and_loads_of_its_own_thread_only() {
        let clock = Clock::of_this_thread();
        count_wait(Duration::from_millis(1500));
        drop(waiting());
        drop(loading());
        std::thread::spawn(|| count_wait(Duration::from_secs(9))).join().unwrap();
        let sums = clock.sums();
        assert_eq!(sums.waits, 2);
        assert!((1.5..9.0).contains(&sums.waited), "{sums:?}");
        assert!(sums.loading > 0.0 && sums.wall > 0.0, "{sums:?}");
    }

    #[test]
    fn sees_from_another_thread_how_long_its_thread_has_run() {
        let clock = Clock::of_this_thread();
        let before = clock.sums();
        let mut running = before.running;
        // Ends when the kernel has counted the time, however long that takes.
        while running < before.running + 0.02 {
            let clock = Arc::clone(&clock);
            running = std::thread::spawn(move || clock.sums().running).join().unwrap();
        }
    }

    #[test]
    fn reads_nothing_from_a_file_of_another_form() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("schedstat");
        for (text, expected) in [("2000000000 500000000 7\n", Some([2.0, 0.5])), ("", None), ("1", None), ("a b", None)]
        {
            fs::write(&path, text).unwrap();
            assert_eq!(scheduled(&path), expected, "{text:?}");
        }
        assert_eq!(scheduled(&dir.path().join("none")), None);
    }
}
