//! Where a rank's time goes: waiting for other ranks, waiting for batches, or its own work; and which ranks are late because
//! of it.
//!
//! All ranks take the same time for a step, since fast ranks wait in their collectives for slow ones. So the rank that all
//! others wait for is the one that waits least itself. Every rank adds up its waits (`Clock`), its reporter's thread
//! publishes the sums once a second (`Publisher`), and that of rank 0 compares them (`judge.rs`) and reports findings that
//! hold for several intervals (`watch.rs`). This adds no collective or store operation to a step.
//!
//! Ranks that share memory also know who arrives last in each collective (`Arrivals`); over several hosts, ranks know this about
//! those on their own host, and otherwise only that they wait for another host. So a rank that all others wait for is reported while
//! they wait (`Stalls`), and a rank that nobody waits for is never reported as late.
//!
//! Only the thread that joined the default group is measured. Waits on NCCL take place on the GPU, so they are not seen, and
//! nothing is reported.

mod clock;
mod judge;
mod watch;

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::{Rank, Store, WorldSize};
use clock::{Sums, Waits};
use judge::RankSums;
use watch::{Reading, Stalls, Watch};

pub use clock::{Timed, loading};
pub use judge::{Cause, Finding};

pub(crate) use clock::{Arrivals, Clock, count_wait, waiting};

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

/// Publishes a rank's sums in the job's store, and on rank 0 compares those of all ranks. It runs on the thread that answers desync
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

    /// Publishes the rank's sums if they are due, and on rank 0 compares those of all ranks.
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
