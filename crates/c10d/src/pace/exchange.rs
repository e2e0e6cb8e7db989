//! Where the sums of all ranks meet: in the job's store, once a second, on the thread that also answers desync reports.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::arrivals::Waits;
use super::clock::{Clock, Sums};
use super::judge::Span;
use super::listener::say;
use super::stall::Stalls;
use super::watch::{Reading, Watch};
use crate::error::Result;
use crate::{Rank, Store, WorldSize};

/// How often a rank publishes its sums, in milliseconds.
static PERIOD: AtomicU64 = AtomicU64::new(1000);

/// From now on, ranks of this process that join a job publish their sums this often, instead of once a second, and an interval that is
/// compared is as much shorter.
pub fn publish_every(period: Duration) {
    PERIOD.store(u64::try_from(period.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
}

/// The value of a rank's key.
#[derive(Debug, Serialize, Deserialize)]
struct Published {
    host: String,
    sums: Sums,
    waits: Waits,
}

/// A rank's part of the exchange.
#[derive(Debug)]
pub(crate) struct Exchange {
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

impl Exchange {
    /// Of the rank whose training thread `clock` measures. Nothing is sent before a period has passed.
    pub(crate) fn new(clock: Arc<Clock>, rank: Rank, world: WorldSize) -> Self {
        let period = Duration::from_millis(PERIOD.load(Ordering::Relaxed));
        let collects = || Collects {
            keys: world.ranks().map(key).collect(),
            watch: Watch::new(period),
            stalls: Stalls::default(),
        };
        Exchange {
            clock,
            host: String::new(),
            period,
            due: Instant::now() + period,
            key: key(rank),
            collects: rank.is_zero().then(collects),
        }
    }

    /// Publishes the rank's sums if it is time, and on rank 0 compares all.
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

    /// Sums up, at the end of the job.
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
        let spans: Option<Reading> = values.iter().map(|value| span(value)).collect();
        if let Some(spans) = spans {
            let findings = self.stalls.take(&spans).into_iter().chain(self.watch.take(spans));
            findings.for_each(|finding| say(&finding.to_string(), Some(&finding)));
        }
        Ok(())
    }
}

fn span(value: &[u8]) -> Option<Span> {
    let Published { host, sums, waits } = serde_json::from_slice(value).ok()?;
    Some(Span { host, sums, waits })
}

fn key(rank: Rank) -> String {
    format!("lockstep/pace/{rank}")
}

fn hostname() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").map_or_else(|_| "localhost".into(), |name| name.trim().to_owned())
}
