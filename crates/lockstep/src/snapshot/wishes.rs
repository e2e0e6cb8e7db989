//! Wishes for a snapshot, which arrive as signals ([`lockstep_contract::wish`]), and the ranks' agreement on the step after which they
//! are granted.
//!
//! A signal may reach one rank only, or each rank in another step. A rank that ends a step earlier than the others would leave them
//! waiting in the next step's all-reduce. So the ranks ask the store after each step:
//!
//! 1. A rank with a wish notes it in the store for the *next* boundary between steps, before it enters the next step.
//! 2. No rank completes that step without this one, because they all exchange their gradients in it.
//! 3. So when any rank reaches the next boundary, the note is in the store, and all ranks read the same there.
//!
//! The question costs one exchange with the store for each step, and none in a world of one rank.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use c10d::{ProcessGroup, Store};
use lockstep_contract::wish::{SAVE, SAVE_AND_END};
use signal_hook::SigId;
use signal_hook::low_level::unregister;

use super::end_signals;

/// What the ranks have agreed to do at a boundary between steps. The later one includes the earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Wish {
    /// Save and go on.
    Save,
    /// Save and end.
    SaveAndEnd,
}

/// The signals that this rank has received, and its place in the agreement.
pub(super) struct Wishes {
    save: Signal,
    end: Signal,
    /// The prefix of this attempt's keys in the store, the same on all ranks.
    attempt: String,
    /// The number of boundaries so far.
    boundary: u64,
}

/// A signal that has arrived and is not granted yet.
struct Signal {
    arrived: Arc<AtomicBool>,
    id: SigId,
}

impl Signal {
    fn listen(number: i32) -> io::Result<Self> {
        let arrived = Arc::new(AtomicBool::new(false));
        let id = signal_hook::flag::register(number, Arc::clone(&arrived))?;
        Ok(Signal { arrived, id })
    }
}

impl Drop for Signal {
    fn drop(&mut self) {
        unregister(self.id);
    }
}

/// A name for an attempt of a job: the store of some launchers keeps the keys of earlier attempts.
pub(super) fn name_of_attempt() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{}-{}", std::process::id(), now.as_nanos())
}

impl Wishes {
    /// Listens to the signals from now on. `attempt` is rank 0's [`name_of_attempt`].
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn listen(attempt: &str) -> io::Result<Self> {
        let attempt = format!("snapshot_wishes/{attempt}");
        let wishes = Wishes { save: Signal::listen(SAVE)?, end: Signal::listen(SAVE_AND_END)?, attempt, boundary: 0 };
        end_signals::listen(&wishes.end.arrived)?;
        Ok(wishes)
    }

    /// What all ranks do at this boundary. Each rank asks at each boundary, and all ranks exchange something between two of them.
    ///
    /// # Errors
    /// The store's error.
    pub(super) fn agree(&mut self, group: &ProcessGroup) -> c10d::Result<Option<Wish>> {
        let now = self.boundary;
        self.boundary += 1;
        if group.size().get() == 1 {
            let own = self.own();
            self.granted(own);
            return Ok(own);
        }
        let agreed = self.noted(group.store(), now)?;
        self.granted(agreed);
        if let Some(own) = self.own() {
            // `add` waits for the store's answer, which `set` does not.
            group.store().add(&self.key(now + 1), weight(own))?;
        }
        Ok(agreed)
    }

    /// The wish of this rank that is not granted yet.
    fn own(&self) -> Option<Wish> {
        let arrived = |signal: &Signal| signal.arrived.load(Ordering::Relaxed);
        match (arrived(&self.end), arrived(&self.save)) {
            (true, _) => Some(Wish::SaveAndEnd),
            (false, true) => Some(Wish::Save),
            (false, false) => None,
        }
    }

    fn granted(&mut self, wish: Option<Wish>) {
        if wish >= Some(Wish::Save) {
            self.save.arrived.store(false, Ordering::Relaxed);
        }
        if wish == Some(Wish::SaveAndEnd) {
            self.end.arrived.store(false, Ordering::Relaxed);
        }
    }

    fn noted(&self, store: &Store, boundary: u64) -> c10d::Result<Option<Wish>> {
        let key = self.key(boundary);
        let notes = if store.check(&[&key])? { store.add(&key, 0)? } else { 0 };
        Ok(match notes {
            0 => None,
            notes if notes < weight(Wish::SaveAndEnd) => Some(Wish::Save),
            _ => Some(Wish::SaveAndEnd),
        })
    }

    fn key(&self, boundary: u64) -> String {
        format!("{}/{boundary}", self.attempt)
    }
}

/// What a rank adds to a note: larger than what all ranks together add for a lesser wish.
fn weight(wish: Wish) -> i64 {
    match wish {
        Wish::Save => 1,
        Wish::SaveAndEnd => 1 << 32,
    }
}
