//! The roll call: after a failure, the surviving ranks say in the store where they are, so that the error can name who is not
//! there and who called something else.
//!
//! Gloo's own errors name an address or nothing at all. Here every rank of a group keeps a note of the operations that it is
//! in, and a thread that answers through the store when somebody asks: also while the rank itself is blocked in a collective.
//! A rank that is dead or stopped does not answer. Costs one `check` per rank and poll interval.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::error::{Fault, Result};
use crate::{Rank, Store, WorldSize};

/// How often the answering thread looks whether somebody asked.
const POLL: Duration = Duration::from_millis(200);

/// How long the asking rank waits for answers: several polls, so that a busy machine does not turn a live rank into a dead one.
const PATIENCE: Duration = Duration::from_secs(3);

/// How long a group that ends waits for its farewell to be in the store, whose host may be stopped.
const FAREWELL: Duration = Duration::from_secs(2);

/// Counts the roll calls of the job.
const ASKED: &str = "lockstep/roll_call/asked";

/// Where a rank answers one roll call.
fn answer_key(round: i64, rank: Rank) -> String {
    format!("lockstep/roll_call/{round}/{rank}")
}

/// What a rank leaves behind when it lets go of a group, for roll calls to come.
fn farewell_key(group: &str, rank: Rank) -> String {
    format!("lockstep/roll_call/farewell/{group}/{rank}")
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
    /// It has let go of the group.
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
    /// Which of the group's collectives it is, counted from 1; `None` for messages, which ranks do not count alike.
    pub number: Option<u64>,
    /// Name and shapes.
    pub operation: String,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(number) = self.number {
            write!(f, "call {number}, ")?;
        }
        f.write_str(&self.operation)?;
        if self.group != "0" {
            write!(f, " (group {})", self.group)?;
        }
        Ok(())
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
                let same_place = own.group == other.group && own.number.is_some() && own.number == other.number;
                same_place && own.operation != other.operation
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
    /// Groups that the rank lets go of, with farewells that are not in the store yet.
    leaving: Vec<(String, Whereabouts)>,
    /// The roll ends.
    stop: bool,
    /// The answering thread has ended.
    deaf: bool,
    /// A farewell did not get into the store in time, so nobody waits for the answering thread again.
    held_up: bool,
}

/// What [`Roll::enter`] hands out for [`Roll::leave`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket(u64);

impl Note {
    /// A failure that nothing has followed says most; else the oldest open operation is where the rank is held up.
    fn whereabouts(&self) -> Whereabouts {
        if let Some((call, why)) = &self.failed {
            return Whereabouts::Failed { call: call.clone(), why: why.clone() };
        }
        match self.open.first_key_value() {
            Some((_, call)) => Whereabouts::In(call.clone()),
            None => Whereabouts::Between { finished: self.finished },
        }
    }

    /// What a rank says that lets go of a group.
    fn farewell(&self) -> Whereabouts {
        match &self.failed {
            Some((call, why)) => Whereabouts::Failed { call: call.clone(), why: why.clone() },
            None => Whereabouts::Left { finished: self.finished, panicking: std::thread::panicking() },
        }
    }
}

#[derive(Debug, Default)]
struct Shared {
    note: Mutex<Note>,
    /// Somebody leaves or stops, has left, or nobody answers any more.
    changed: Condvar,
}

impl Shared {
    // A note is only counters and strings: whatever a panicking holder left is still true.
    fn note(&self) -> MutexGuard<'_, Note> {
        self.note.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a rank enters, as far as the roll is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// All ranks of the group make it, in the same order.
    Collective,
    /// Two ranks make it, or any sender and this rank.
    Message,
}

/// Keeps a rank's note, answers roll calls, and calls the roll. One per job and rank.
#[derive(Debug)]
pub(crate) struct Roll {
    rank: Rank,
    store: Arc<Store>,
    shared: Arc<Shared>,
}

impl Roll {
    /// Starts the answering thread, which has a connection of its own to the store.
    pub(crate) fn start(store: &Store, rank: Rank, world: WorldSize) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let (own, theirs) = (Arc::new(store.clone_later()?), store.try_clone()?);
        if world.get() > 1 {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || {
                answer_until_stopped(&theirs, rank, &shared);
                drop(theirs);
                shared.note().deaf = true;
                shared.changed.notify_all();
            });
        } else {
            shared.note().deaf = true;
        }
        Ok(Roll { rank, store: own, shared })
    }

    /// Notes that the rank enters an operation of a group.
    pub(crate) fn enter(&self, group: &str, operation: &str, kind: Kind) -> Ticket {
        let mut note = self.shared.note();
        let number = (kind == Kind::Collective).then(|| {
            let number = note.issued.entry(group.to_owned()).or_default();
            *number += 1;
            *number
        });
        let call = Call { group: group.to_owned(), number, operation: operation.to_owned() };
        let ticket = note.next_ticket;
        note.next_ticket += 1;
        note.open.insert(ticket, call);
        Ticket(ticket)
    }

    /// Notes that the operation is over. A rank that goes on has left earlier failures behind.
    pub(crate) fn leave(&self, ticket: Ticket) {
        let mut note = self.shared.note();
        note.open.remove(&ticket.0);
        note.finished += 1;
        note.failed = None;
    }

    /// Leaves a farewell for those that are in the group still. To be called before the group's connections are closed: who sees
    /// them closed finds it in the store. Gives up after [`FAREWELL`].
    pub(crate) fn leave_group(&self, group: &str) {
        let mut note = self.shared.note();
        let farewell = note.farewell();
        note.leaving.push((group.to_owned(), farewell));
        self.shared.changed.notify_all();
        let pending =
            |note: &mut Note| !note.deaf && !note.held_up && note.leaving.iter().any(|(name, _)| name == group);
        let waited = self.shared.changed.wait_timeout_while(note, FAREWELL, pending);
        let (mut note, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        note.held_up |= waited.timed_out();
    }

    /// Notes that the operation failed, and asks the given ranks of its group where they are. Takes hardly longer than
    /// [`PATIENCE`], also when the store does not answer.
    pub(crate) fn call(&self, ticket: Ticket, why: &str, group: &str, members: &[Rank]) -> RollCall {
        let own = {
            let mut note = self.shared.note();
            match note.open.remove(&ticket.0) {
                Some(call) => {
                    note.failed = Some((call.clone(), why.to_owned()));
                    Whereabouts::Failed { call, why: why.to_owned() }
                }
                None => note.whereabouts(),
            }
        };
        let others: Vec<Rank> = members.iter().copied().filter(|&rank| rank != self.rank).collect();
        match self.ask_in_time(own.clone(), group.to_owned(), others) {
            Ok(answers) => RollCall { own, answers, store_error: None },
            Err(why) => RollCall { own, answers: BTreeMap::new(), store_error: Some(why) },
        }
    }

    /// A store whose host is stopped blocks its callers for ever (c10d waits for its answers without a deadline), so somebody
    /// else asks. That thread is given up with the store.
    fn ask_in_time(
        &self,
        own: Whereabouts,
        group: String,
        others: Vec<Rank>,
    ) -> Result<BTreeMap<Rank, Option<Whereabouts>>, String> {
        let (sender, receiver) = channel();
        let (store, rank) = (Arc::clone(&self.store), self.rank);
        std::thread::spawn(move || {
            // Nobody listens any more if this comes too late.
            let _ = sender.send(ask(&store, rank, &own, &group, &others));
        });
        match receiver.recv_timeout(PATIENCE + 5 * POLL) {
            Ok(asked) => asked.map_err(|error| error.detail().to_owned()),
            Err(_) => Err(format!("no answer within {} s", PATIENCE.as_secs())),
        }
    }
}

impl Drop for Roll {
    /// Waits for the answering thread, which must not be in libtorch when the process ends. One that a stopped host holds up is left
    /// to end with the store.
    fn drop(&mut self) {
        let mut note = self.shared.note();
        note.stop = true;
        self.shared.changed.notify_all();
        let answers = |note: &mut Note| !note.deaf && !note.held_up;
        let waited = self.shared.changed.wait_timeout_while(note, FAREWELL, answers);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

/// Opens a new round, answers it, and collects what the others say.
fn ask(
    store: &Store,
    rank: Rank,
    own: &Whereabouts,
    group: &str,
    others: &[Rank],
) -> Result<BTreeMap<Rank, Option<Whereabouts>>> {
    let round = store.add(ASKED, 1)?;
    publish(store, &answer_key(round, rank), own)?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut answers = BTreeMap::new();
        for &other in others {
            // The farewell first: a rank that has left this group may still be there for others, and answer.
            let answer = match read(store, &farewell_key(group, other))? {
                Some(farewell) => Some(farewell),
                None => read(store, &answer_key(round, other))?,
            };
            answers.insert(other, answer);
        }
        if answers.values().all(Option::is_some) || Instant::now() >= deadline {
            return Ok(answers);
        }
        std::thread::sleep(POLL / 10);
    }
}

fn read(store: &Store, key: &str) -> Result<Option<Whereabouts>> {
    if !store.check(&[key])? {
        return Ok(None);
    }
    Ok(serde_json::from_slice(&store.get(key)?).ok())
}

fn publish(store: &Store, key: &str, whereabouts: &Whereabouts) -> Result<()> {
    store.set(key, serde_json::to_vec(whereabouts).unwrap_or_default())
}

/// Answers every round once and leaves the farewells, until the roll ends or the store is gone.
fn answer_until_stopped(store: &Store, rank: Rank, shared: &Shared) {
    let mut answered = 0;
    loop {
        let note = shared.note();
        let idle = |note: &mut Note| !note.stop && note.leaving.is_empty();
        let (note, _) = shared.changed.wait_timeout_while(note, POLL, idle).unwrap_or_else(PoisonError::into_inner);
        let (stop, now, leaving) = (note.stop, note.whereabouts(), note.leaving.clone());
        drop(note);
        for (group, farewell) in &leaving {
            if publish(store, &farewell_key(group, rank), farewell).is_err() {
                return;
            }
        }
        shared.note().leaving.drain(..leaving.len());
        shared.changed.notify_all();
        if stop {
            return;
        }
        match answer(store, rank, &now, answered) {
            Ok(rounds) => answered = rounds,
            Err(_) => return,
        }
    }
}

/// Answers the rounds after `answered`; gives the last one.
fn answer(store: &Store, rank: Rank, now: &Whereabouts, answered: i64) -> Result<i64> {
    let rounds = store.add(ASKED, 0)?;
    for round in answered + 1..=rounds {
        publish(store, &answer_key(round, rank), now)?;
    }
    Ok(rounds)
}
