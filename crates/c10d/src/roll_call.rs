//! The roll call: after a failure, the surviving ranks say in the store where they are, so that the error can name who is not
//! there and who called something else.
//!
//! Gloo's own errors name an address or nothing at all. Here every rank of a group keeps a note of the operations that it is
//! in, and a thread that answers through the store when somebody asks: also while the rank itself is blocked in a collective.
//! A rank that is dead or stopped does not answer. Costs one `check` per rank and poll interval.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::error::{Fault, Result};
use crate::{Rank, Store, WorldSize};

/// How often the answering thread looks whether somebody asked.
const POLL: Duration = Duration::from_millis(200);

/// How long the asking rank waits for answers: several polls, so that a busy machine does not turn a live rank into a dead one.
const PATIENCE: Duration = Duration::from_secs(3);

const ASKED: &str = "lockstep/roll_call/asked";

fn answer_key(rank: Rank) -> String {
    format!("lockstep/roll_call/{rank}")
}

/// What a rank says about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Whereabouts {
    /// In this operation.
    In(Call),
    /// This operation failed there.
    Failed {
        /// The operation.
        call: Call,
        /// Its error.
        why: String,
    },
    /// In none.
    Between {
        /// How many calls it has finished.
        finished: u64,
    },
    /// It has let go of its group.
    Left {
        /// How many calls it has finished.
        finished: u64,
        /// Whether a panic unwound it.
        panicking: bool,
    },
}

/// One call of one rank.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Call {
    /// The group's name: `0` is the whole job.
    pub group: String,
    /// Which of the group's calls it is, counted from 1.
    pub number: u64,
    /// Name and shapes.
    pub operation: String,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "call {}", self.number)?;
        if self.group != "0" {
            write!(f, " of group {}", self.group)?;
        }
        write!(f, ", {}", self.operation)
    }
}

/// The answers to one roll call, as one rank saw them. Ranks are those of the whole job.
#[derive(Clone, Debug)]
pub struct RollCall {
    own: Whereabouts,
    answers: BTreeMap<Rank, Option<Whereabouts>>,
    store_error: Option<String>,
}

impl RollCall {
    /// The ranks that did not answer: dead, stopped, or not started from this project.
    pub fn missing(&self) -> Vec<Rank> {
        self.answers.iter().filter(|(_, answer)| answer.is_none()).map(|(&rank, _)| rank).collect()
    }

    /// What each other rank said; `None` for no answer.
    pub fn answers(&self) -> &BTreeMap<Rank, Option<Whereabouts>> {
        &self.answers
    }

    /// The fault that the answers prove, if they do.
    pub(crate) fn verdict(&self) -> Option<Fault> {
        if self.store_error.is_some() {
            return None;
        }
        let gone = |a: &Option<Whereabouts>| matches!(a, None | Some(Whereabouts::Left { .. }));
        if self.answers.values().any(gone) {
            return Some(Fault::PeerGone);
        }
        let differs = |a: &Option<Whereabouts>| a.as_ref().is_some_and(|a| self.contradicts(a));
        self.answers.values().any(differs).then_some(Fault::Mismatch)
    }

    /// Whether a rank is, or failed, in a call of the same number as ours, but in another operation.
    fn contradicts(&self, other: &Whereabouts) -> bool {
        match (self.own.call(), other.call()) {
            (Some(own), Some(other)) => {
                own.group == other.group && own.number == other.number && own.operation != other.operation
            }
            _ => false,
        }
    }
}

impl fmt::Display for RollCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(error) = &self.store_error {
            return write!(f, "the store did not answer a roll call either ({error}): its host is gone or unreachable");
        }
        let mut parts = Vec::new();
        let mut here = Vec::new();
        for (rank, answer) in &self.answers {
            match answer {
                None => parts.push(format!(
                    "rank {rank} did not answer within {} s: it has exited, was killed, is stopped, or keeps no roll",
                    PATIENCE.as_secs()
                )),
                Some(answer) if answer.call().is_some() && answer.call() == self.own.call() => {
                    here.push(rank.to_string())
                }
                Some(answer) => parts.push(format!("rank {rank} {answer}")),
            }
        }
        if !here.is_empty() {
            let (word, verb) = if here.len() == 1 { ("rank", "was") } else { ("ranks", "were") };
            parts.push(format!("{word} {} {verb} in the same call", here.join(", ")));
        }
        if let Some(call) = self.own.call() {
            parts.push(format!("this rank was in {call}"));
        }
        f.write_str(&parts.join("; "))
    }
}

impl Whereabouts {
    fn call(&self) -> Option<&Call> {
        match self {
            Whereabouts::In(call) | Whereabouts::Failed { call, .. } => Some(call),
            Whereabouts::Between { .. } | Whereabouts::Left { .. } => None,
        }
    }
}

impl fmt::Display for Whereabouts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Whereabouts::In(call) => write!(f, "was in {call}"),
            Whereabouts::Failed { call, why } => write!(f, "failed in {call} ({why})"),
            Whereabouts::Between { finished } => {
                write!(f, "was outside any collective, after {finished} finished calls")
            }
            Whereabouts::Left { finished, panicking: false } => {
                write!(f, "has left the group after {finished} finished calls")
            }
            Whereabouts::Left { finished, panicking: true } => {
                write!(f, "panicked after {finished} finished calls")
            }
        }
    }
}

/// A rank's own note of the operations that it is in.
#[derive(Debug, Default)]
struct Note {
    issued: BTreeMap<String, u64>,
    finished: u64,
    open: BTreeMap<u64, Call>,
    next_ticket: u64,
    failed: Option<(Call, String)>,
    stop: bool,
    panicking: bool,
}

/// What [`Roll::enter`] hands out for [`Roll::leave`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket(u64);

impl Note {
    /// The first failure says most; else the oldest open operation is where the rank is held up.
    fn whereabouts(&self) -> Whereabouts {
        if let Some((call, why)) = &self.failed {
            return Whereabouts::Failed { call: call.clone(), why: why.clone() };
        }
        if self.stop {
            return Whereabouts::Left { finished: self.finished, panicking: self.panicking };
        }
        match self.open.first_key_value() {
            Some((_, call)) => Whereabouts::In(call.clone()),
            None => Whereabouts::Between { finished: self.finished },
        }
    }
}

#[derive(Debug, Default)]
struct Shared {
    note: Mutex<Note>,
    stopped: Condvar,
}

impl Shared {
    // A note is only counters and strings: whatever a panicking holder left is still true.
    fn note(&self) -> MutexGuard<'_, Note> {
        self.note.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps a rank's note, answers roll calls, and calls the roll. One per group and rank.
#[derive(Debug)]
pub(crate) struct Roll {
    rank: Rank,
    store: Store,
    shared: Arc<Shared>,
    answering: Option<JoinHandle<()>>,
}

impl Roll {
    /// Starts the answering thread, which has a connection of its own to the store.
    pub(crate) fn start(store: &Store, rank: Rank, world: WorldSize) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let (own, theirs) = (store.try_clone()?, store.try_clone()?);
        let answering = (world.get() > 1).then(|| {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || answer_until_stopped(&theirs, rank, &shared))
        });
        Ok(Roll { rank, store: own, shared, answering })
    }

    /// Notes that the rank enters an operation of a group.
    pub(crate) fn enter(&self, group: &str, operation: &str) -> Ticket {
        let mut note = self.shared.note();
        let number = note.issued.entry(group.to_owned()).or_default();
        *number += 1;
        let call = Call { group: group.to_owned(), number: *number, operation: operation.to_owned() };
        let ticket = note.next_ticket;
        note.next_ticket += 1;
        note.open.insert(ticket, call);
        Ticket(ticket)
    }

    /// Notes that the operation is over.
    pub(crate) fn leave(&self, ticket: Ticket) {
        let mut note = self.shared.note();
        note.open.remove(&ticket.0);
        note.finished += 1;
    }

    /// Notes that the operation failed, and asks the given ranks of the job where they are. Takes at most [`PATIENCE`] and a
    /// last round trip.
    pub(crate) fn call(&self, ticket: Ticket, why: &str, members: &[Rank]) -> RollCall {
        let own = {
            let mut note = self.shared.note();
            if let Some(call) = note.open.remove(&ticket.0) {
                note.failed.get_or_insert((call.clone(), why.to_owned()));
                Whereabouts::Failed { call, why: why.to_owned() }
            } else {
                note.whereabouts()
            }
        };
        match self.ask(&own, members) {
            Ok(answers) => RollCall { own, answers, store_error: None },
            Err(error) => RollCall { own, answers: BTreeMap::new(), store_error: Some(error.detail().to_owned()) },
        }
    }

    fn ask(&self, own: &Whereabouts, members: &[Rank]) -> Result<BTreeMap<Rank, Option<Whereabouts>>> {
        publish(&self.store, self.rank, own)?;
        self.store.set(ASKED, "1")?;
        let others = members.iter().copied().filter(|&rank| rank != self.rank);
        let keys: BTreeMap<Rank, String> = others.map(|rank| (rank, answer_key(rank))).collect();
        let all: Vec<&String> = keys.values().collect();
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline && !self.store.check(&all)? {
            std::thread::sleep(POLL / 10);
        }
        keys.iter().map(|(&rank, key)| Ok((rank, self.read(key)?))).collect()
    }

    fn read(&self, key: &str) -> Result<Option<Whereabouts>> {
        if !self.store.check(&[key])? {
            return Ok(None);
        }
        Ok(serde_json::from_slice(&self.store.get(key)?).ok())
    }
}

impl Drop for Roll {
    fn drop(&mut self) {
        let Some(thread) = self.answering.take() else { return };
        let mut note = self.shared.note();
        note.stop = true;
        note.panicking = std::thread::panicking();
        drop(note);
        self.shared.stopped.notify_all();
        // A panic of the answering thread has been printed already, and there is nobody left to tell.
        let _ = thread.join();
    }
}

/// Waits to be asked, then keeps the answer up to date; leaves a farewell. Ends early when the store is gone.
fn answer_until_stopped(store: &Store, rank: Rank, shared: &Shared) {
    let mut said = None;
    loop {
        let note = shared.note();
        let (note, _) =
            shared.stopped.wait_timeout_while(note, POLL, |note| !note.stop).unwrap_or_else(PoisonError::into_inner);
        let (stop, now) = (note.stop, note.whereabouts());
        drop(note);
        if stop {
            // The store may have ended first; then nobody can read a farewell.
            let _ = publish(store, rank, &now);
            return;
        }
        let asked = match said {
            Some(_) => Ok(true),
            None => store.check(&[ASKED]),
        };
        match asked {
            Ok(true) if said.as_ref() != Some(&now) => {
                if publish(store, rank, &now).is_err() {
                    return;
                }
                said = Some(now);
            }
            Ok(_) => {}
            Err(_) => return,
        }
    }
}

fn publish(store: &Store, rank: Rank, whereabouts: &Whereabouts) -> Result<()> {
    let text = serde_json::to_vec(whereabouts).unwrap_or_default();
    store.set(&answer_key(rank), text)
}
