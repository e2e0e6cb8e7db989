//! A rank's record of its own calls, and a desync report as one rank sees it: which ranks are missing after a failure, and which
//! called another operation. Every rank records which operations it is in, answers requests, and after a failure requests the states of
//! the others.
//!
//! Gloo's own errors name an address or nothing at all. Here a thread answers requests through the store, even while
//! the rank is blocked in a collective. A rank that is dead or stopped does not answer. The cost is one `check` per
//! rank and poll interval. The same thread publishes how long the rank waits for others ([`crate::stragglers`]).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use lockstep_contract::background::DESYNC_REPORT;
use lockstep_contract::desync_report::{ASKED, Call, RankState, answer_key, farewell_key};

use crate::error::{DesyncReport, Error, ErrorKind, PATIENCE, Result};
use crate::stragglers::{Arrivals, Clock, Publisher};
use crate::{Rank, Store, WorldSize};

/// A call of a group's operation, as [`ProcessGroup::called`](crate::ProcessGroup::called) returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Called {
    /// The operation, with its shapes and the peer of a message, and its group.
    pub call: Call,
    /// The ranks of the job in the group.
    pub members: Vec<Rank>,
    /// True if the rank has waited for the call to end.
    pub waited: bool,
    /// The number of earlier calls whose end the rank had waited for when it made this one.
    pub waited_before: usize,
}

/// The kind of an operation, as far as reports need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallKind {
    /// All ranks of the group call it, in the same order.
    Collective,
    /// Two ranks call it; a receiver may take any sender.
    Message,
}

/// A rank's own record of the operations that it is in.
#[derive(Debug, Default)]
struct CallRecord {
    pub(crate) issued: BTreeMap<String, u64>,
    pub(crate) finished: u64,
    pub(crate) open: BTreeMap<u64, Call>,
    /// The open operations whose end the rank waits for.
    pub(crate) waiting: BTreeSet<u64>,
    next_entry: u64,
    /// The number of the first entry after the failure, the call that failed, and why.
    pub(crate) failed: Option<(u64, Call, String)>,
    /// The calls and their entries, if calls are recorded.
    pub(crate) called: Option<Vec<(u64, Called)>>,
    /// The rank's state while it joins a group.
    pub(crate) joining: Option<RankState>,
    /// Groups that the rank is about to leave.
    pub(crate) leaving: Vec<Leaving>,
    /// The reporter is being dropped.
    pub(crate) stop: bool,
    /// The answering thread has ended.
    pub(crate) ended: bool,
    /// A farewell was not in the store in time, so the rank does not wait for the answering thread again.
    store_is_late: bool,
}

/// A group that the rank is about to leave.
#[derive(Clone, Debug)]
struct Leaving {
    pub(crate) group: String,
    farewell: RankState,
    /// The farewell is in the store.
    published: bool,
    /// The rank waits for ranks that are still joining.
    pub(crate) waits: bool,
}

/// Returned by [`Reporter::enter`](crate::desync_report::Reporter::enter), for its `leave`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry(pub(crate) u64);

impl CallRecord {
    /// A failure without a later call is the most informative state. Otherwise the rank is blocked in joining a group, in a wait, or in
    /// the oldest open operation.
    pub(crate) fn state(&self) -> RankState {
        if let Some((_, call, why)) = &self.failed {
            return RankState::Failed { call: call.clone(), why: why.clone() };
        }
        if let Some(joining) = &self.joining {
            return joining.clone();
        }
        let waiting = self.waiting.first().filter(|entry| self.open.contains_key(entry));
        match waiting.or_else(|| self.open.keys().next()) {
            Some(entry) => RankState::In(Call { beside: self.beside(*entry), ..self.open[entry].clone() }),
            None => RankState::Between { finished: self.finished },
        }
    }

    /// The other open operations.
    fn beside(&self, entry: u64) -> Vec<String> {
        self.open.iter().filter(|(other, _)| **other != entry).map(|(_, call)| call.operation.clone()).collect()
    }

    /// The state that a rank publishes when it leaves a group.
    fn farewell(&self) -> RankState {
        match &self.failed {
            Some((_, call, why)) => RankState::Failed { call: call.clone(), why: why.clone() },
            None => RankState::Left { finished: self.finished, panicking: std::thread::panicking() },
        }
    }
}

/// How often the answering thread looks for a request.
const POLL: Duration = Duration::from_millis(200);

/// How long a rank that leaves a group waits for its farewell to reach the store, whose host may be stopped.
const FAREWELL: Duration = Duration::from_secs(2);

/// How long it waits for all others to join the group.
const JOINING: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
struct Shared {
    record: Mutex<CallRecord>,
    /// Notified when a farewell is added or published, when the reporter is dropped, and when the answering thread
    /// ends.
    changed: Condvar,
}

impl Shared {
    // The record has only counters and strings, which stay valid when the holder of the lock panics.
    fn record(&self) -> MutexGuard<'_, CallRecord> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps a rank's record, answers requests, and makes reports. There is one for each job and rank.
#[derive(Debug)]
pub(crate) struct Reporter {
    rank: Rank,
    store: Arc<Store>,
    shared: Arc<Shared>,
    /// The clock of the thread that started the reporter, if there are other ranks.
    clock: Option<Arc<Clock>>,
}

impl Reporter {
    /// Starts the answering thread. It and the asking threads have their own connection to the store, on which no call blocks. The
    /// connection is opened before anything fails, because libtorch's server looks up the name of each new client and answers nobody
    /// meanwhile.
    pub(crate) fn start(store: &Store, rank: Rank, world: WorldSize) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let store = Arc::new(store.try_clone()?);
        let clock = (world.get() > 1).then(Clock::of_this_thread);
        if let Some(clock) = &clock {
            let (store, shared) = (Arc::clone(&store), Arc::clone(&shared));
            let mut publisher = Publisher::new(Arc::clone(clock), rank, world);
            let answer = move || {
                answer_until_stopped(&store, rank, &shared, &mut publisher);
                drop(store);
                publisher.finish();
                shared.record().ended = true;
                shared.changed.notify_all();
            };
            let failed = |error: io::Error| {
                Error::with_kind(
                    ErrorKind::Internal,
                    "starting the thread that answers desync reports",
                    error.to_string(),
                )
            };
            Builder::new().name(DESYNC_REPORT.into()).spawn(answer).map_err(failed)?;
        } else {
            shared.record().ended = true;
        }
        Ok(Reporter { rank, store, shared, clock })
    }

    /// From now on the clock also knows for whom the rank waits in the default group.
    pub(crate) fn attach(&self, arrivals: Arrivals) {
        if let Some(clock) = &self.clock {
            clock.attach(arrivals);
        }
    }

    /// Records that the rank enters an operation of a group with these members. For a message, `peer` is the other rank.
    pub(crate) fn enter(
        &self,
        group: &str,
        members: &[Rank],
        operation: &str,
        kind: CallKind,
        peer: Option<Rank>,
    ) -> Entry {
        let mut record = self.shared.record();
        let number = (kind == CallKind::Collective).then(|| {
            let number = record.issued.entry(group.to_owned()).or_default();
            *number += 1;
            *number
        });
        let call = Call {
            group: group.to_owned(),
            number,
            operation: operation.to_owned(),
            peer: peer.map(Rank::get),
            beside: Vec::new(),
        };
        let entry = record.next_entry;
        record.next_entry += 1;
        if let Some(called) = &mut record.called {
            let waited_before = called.iter().filter(|(_, earlier)| earlier.waited).count();
            called
                .push((entry, Called { call: call.clone(), members: members.to_vec(), waited: false, waited_before }));
        }
        record.open.insert(entry, call);
        Entry(entry)
    }

    /// Records that the rank waits for the operation's end.
    pub(crate) fn wait(&self, entry: Entry) {
        let mut record = self.shared.record();
        record.waiting.insert(entry.0);
        let mut called = record.called.iter_mut().flatten();
        if let Some((_, called)) = called.find(|(of, _)| *of == entry.0) {
            called.waited = true;
        }
    }

    /// Records calls from now on, and forgets earlier ones.
    pub(crate) fn record_calls(&self) {
        self.shared.record().called = Some(Vec::new());
    }

    pub(crate) fn is_recording(&self) -> bool {
        self.shared.record().called.is_some()
    }

    pub(crate) fn called(&self) -> Vec<Called> {
        self.shared.record().called.iter().flatten().map(|(_, called)| called.clone()).collect()
    }

    /// Records that the operation has finished. A failure before it began is cleared, since the rank continues.
    pub(crate) fn leave(&self, entry: Entry) {
        let mut record = self.shared.record();
        record.open.remove(&entry.0);
        record.waiting.remove(&entry.0);
        record.finished += 1;
        record.failed.take_if(|(next, ..)| entry.0 >= *next);
    }

    /// Records, for the time of the call, that the rank is joining this group. Counts the rank among those that have begun to
    /// join, and at the end among those that have joined or failed to.
    pub(crate) fn while_joining<T>(
        &self,
        group: &str,
        members: &[Rank],
        join: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let members = members.iter().map(|rank| rank.get()).collect();
        self.shared.record().joining = Some(RankState::Joining { group: group.to_owned(), members });
        let joined = self.store.add(&joining_key(group), 1).and_then(|_| join());
        let counted = self.store.add(&joined_key(group), 1);
        self.shared.record().joining = None;
        joined.and_then(|joined| counted.map(|_| joined))
    }

    /// Publishes a farewell for the ranks that are still in the group. Call it before the group's connections are closed. Then
    /// a rank that sees them closed finds the farewell in the store, and a rank that is still joining does not see them closed.
    /// Gives up after [`FAREWELL`] and [`JOINING`].
    pub(crate) fn leave_group(&self, group: &str) {
        let record = self.shared.record();
        // After a failure another rank may be lost and never join.
        let waits = record.failed.is_none();
        let farewell = record.farewell();
        self.publish_farewell(record, group, farewell, waits);
    }

    /// As [`leave_group`](Self::leave_group), for a group that this rank aborts.
    pub(crate) fn abort_group(&self, group: &str) {
        let record = self.shared.record();
        let farewell = RankState::Aborted { finished: record.finished };
        self.publish_farewell(record, group, farewell, false);
    }

    fn publish_farewell(&self, mut record: MutexGuard<'_, CallRecord>, group: &str, farewell: RankState, waits: bool) {
        record.leaving.push(Leaving { group: group.to_owned(), farewell, published: false, waits });
        self.shared.changed.notify_all();
        let leaving = |record: &CallRecord| record.leaving.iter().find(|leaving| leaving.group == group).cloned();
        let unpublished = |record: &mut CallRecord| {
            !record.ended && !record.store_is_late && leaving(record).is_some_and(|leaving| !leaving.published)
        };
        let waited = self.shared.changed.wait_timeout_while(record, FAREWELL, unpublished);
        let (mut record, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        record.store_is_late |= waited.timed_out();
        let joining = |record: &mut CallRecord| !record.ended && !record.store_is_late && leaving(record).is_some();
        let waited = self.shared.changed.wait_timeout_while(record, JOINING, joining);
        let (mut record, _) = waited.unwrap_or_else(PoisonError::into_inner);
        record.leaving.retain(|leaving| !leaving.published || leaving.group != group);
    }

    /// Records that the operation failed, and asks the ranks that it waits for (the other rank of a message, otherwise all members),
    /// and the ranks that these wait for in turn. Returns after twice [`PATIENCE`] at the latest, even if the store does not answer.
    pub(crate) fn report(&self, entry: Entry, why: &str, group: &str, members: &[Rank]) -> DesyncReport {
        let own = {
            let mut record = self.shared.record();
            record.waiting.remove(&entry.0);
            match record.open.remove(&entry.0) {
                Some(call) => {
                    record.failed = Some((record.next_entry, call.clone(), why.to_owned()));
                    RankState::Failed { call, why: why.to_owned() }
                }
                None => record.state(),
            }
        };
        match self.ask_in_time(own.clone(), group.to_owned(), members.to_vec()) {
            Ok(answers) => DesyncReport { own, answers, store_error: None },
            Err(why) => DesyncReport { own, answers: BTreeMap::new(), store_error: Some(why) },
        }
    }

    /// A store whose host is stopped blocks its callers for ever, because c10d waits for its answers without a deadline. So
    /// another thread asks, which is abandoned if the store does not answer.
    fn ask_in_time(
        &self,
        own: RankState,
        group: String,
        members: Vec<Rank>,
    ) -> Result<BTreeMap<Rank, Option<RankState>>, String> {
        let (sender, receiver) = channel();
        let (store, rank) = (Arc::clone(&self.store), self.rank);
        std::thread::spawn(move || {
            // The receiver is gone if the answer is too late.
            let _ = sender.send(ask(&store, rank, &own, &group, &members));
        });
        // The other thread waits for a rank as long as `PATIENCE`, and for the store before and after that.
        let limit = 2 * PATIENCE;
        match receiver.recv_timeout(limit) {
            Ok(asked) => asked.map_err(|error| error.detail().to_owned()),
            Err(_) => Err(format!("no answer within {} s", limit.as_secs())),
        }
    }
}

impl Drop for Reporter {
    /// Waits for the answering thread, which must not be in libtorch when the process ends. The thread is abandoned if a
    /// stopped host blocks it.
    fn drop(&mut self) {
        let mut record = self.shared.record();
        record.stop = true;
        self.shared.changed.notify_all();
        let answers = |record: &mut CallRecord| !record.ended && !record.store_is_late;
        let waited = self.shared.changed.wait_timeout_while(record, FAREWELL, answers);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

/// Opens a new round, answers it, and collects the answers of the other ranks and of the ranks that these wait for.
fn ask(
    store: &Store,
    rank: Rank,
    own: &RankState,
    group: &str,
    members: &[Rank],
) -> Result<BTreeMap<Rank, Option<RankState>>> {
    let round = store.add(ASKED, 1)?;
    publish(store, &answer_key(round, rank.get()), own)?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        // Before the answers are read: a rank is not missing because this thread came too late.
        let is_last = Instant::now() >= deadline;
        let mut answers = BTreeMap::new();
        let peer = own.call().and_then(|call| call.peer);
        let mut next = peer.map_or(members.to_vec(), |peer| vec![Rank::new(peer)]);
        while let Some(other) = next.pop() {
            if other == rank || answers.contains_key(&other) {
                continue;
            }
            // Reads the farewell first: a rank that has left this group may still be in others, and answer.
            let answer = match read(store, &farewell_key(group, other.get()))? {
                Some(farewell) => Some(farewell),
                None => read(store, &answer_key(round, other.get()))?,
            };
            match answer.as_ref().and_then(RankState::call) {
                Some(Call { peer: Some(peer), .. }) => next.push(Rank::new(*peer)),
                Some(call) if call.number.is_some() && call.group == group => next.extend(members),
                _ => {}
            }
            answers.insert(other, answer);
        }
        if is_last || answers.values().all(Option::is_some) {
            return Ok(answers);
        }
        std::thread::sleep(POLL / 10);
    }
}

fn read(store: &Store, key: &str) -> Result<Option<RankState>> {
    if !store.check(&[key])? {
        return Ok(None);
    }
    Ok(RankState::parse(&store.get(key)?))
}

fn publish(store: &Store, key: &str, state: &RankState) -> Result<()> {
    store.set(key, state.to_bytes())
}

/// Answers every round once, and publishes farewells and the rank's waits, until the reporter is dropped or the store is
/// gone.
fn answer_until_stopped(store: &Store, rank: Rank, shared: &Shared, publisher: &mut Publisher) {
    let mut answered = 0;
    loop {
        let record = shared.record();
        let poll = if record.leaving.is_empty() { POLL } else { POLL / 20 };
        let idle = |record: &mut CallRecord| !record.stop && record.leaving.iter().all(|leaving| leaving.published);
        let (record, _) = shared.changed.wait_timeout_while(record, poll, idle).unwrap_or_else(PoisonError::into_inner);
        let (stop, now, leaving) = (record.stop, record.state(), record.leaving.clone());
        drop(record);
        for leaving in &leaving {
            let Ok(may) = may_leave(store, rank, leaving) else { return };
            let mut record = shared.record();
            record.leaving.iter_mut().filter(|of| of.group == leaving.group).for_each(|of| of.published = true);
            record.leaving.retain(|of| !may || of.group != leaving.group);
            shared.changed.notify_all();
        }
        if stop {
            return;
        }
        match answer(store, rank, &now, answered).and_then(|rounds| publisher.tick(store).map(|()| rounds)) {
            Ok(rounds) => answered = rounds,
            Err(_) => return,
        }
    }
}

/// The key that counts the ranks that have begun to join a group. A rank that has joined finds the others counted, because they
/// count themselves before they connect. Python ranks are not counted.
fn joining_key(group: &str) -> String {
    format!("lockstep/joining/{group}")
}

/// The key that counts the ranks that have joined the group or failed to.
fn joined_key(group: &str) -> String {
    format!("lockstep/joined/{group}")
}

/// Publishes the farewell. Returns true once all ranks that it waits for have joined, or failed to.
fn may_leave(store: &Store, rank: Rank, leaving: &Leaving) -> Result<bool> {
    let Leaving { group, farewell, published, waits } = leaving;
    if !published {
        publish(store, &farewell_key(group, rank.get()), farewell)?;
    }
    Ok(!waits || store.add(&joined_key(group), 0)? >= store.add(&joining_key(group), 0)?)
}

/// Answers the rounds after `answered`; returns the last one.
fn answer(store: &Store, rank: Rank, now: &RankState, answered: i64) -> Result<i64> {
    let rounds = store.add(ASKED, 0)?;
    for round in answered + 1..=rounds {
        publish(store, &answer_key(round, rank.get()), now)?;
    }
    Ok(rounds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_in_what_it_waits_for_and_otherwise_in_its_oldest_operation() {
        let call = |operation: &str| Call {
            group: "0".to_owned(),
            number: None,
            operation: operation.to_owned(),
            peer: None,
            beside: Vec::new(),
        };
        let with = |operation, beside: &str| Call { beside: vec![beside.to_owned()], ..call(operation) };
        let mut record = CallRecord::default();
        record.open.extend([(0, call("isend")), (1, call("recv"))]);
        assert_eq!(record.state(), RankState::In(with("isend", "recv")));
        record.waiting.insert(1);
        assert_eq!(record.state(), RankState::In(with("recv", "isend")));
    }

    #[test]
    fn a_report_on_a_message_goes_on_to_whom_its_peer_waits_for() {
        let (store, world) = (Store::hash().unwrap(), WorldSize::new(3).unwrap());
        let reporter = |rank| Reporter::start(&store, Rank::new(rank), world).unwrap();
        let receive = |reporter: &Reporter, from| {
            reporter.enter("0", &[], &format!("recv from rank {from}"), CallKind::Message, Some(Rank::new(from)))
        };
        let (ours, theirs) = (reporter(0), reporter(1));
        receive(&theirs, 2);
        let text = ours.report(receive(&ours, 1), "Timeout", "0", &[]).to_string();
        assert!(text.contains("rank 1 was in recv from rank 2"), "{text}");
        assert!(text.contains("rank 2 did not answer"), "{text}");
    }

    #[test]
    fn a_report_on_a_message_goes_on_to_all_ranks_if_its_peer_is_in_a_collective() {
        let (store, world) = (Store::hash().unwrap(), WorldSize::new(3).unwrap());
        let reporter = |rank| Reporter::start(&store, Rank::new(rank), world).unwrap();
        let (ours, theirs) = (reporter(0), reporter(1));
        theirs.enter("0", &[], "barrier", CallKind::Collective, None);
        let entry = ours.enter("0", &[], "recv from rank 1", CallKind::Message, Some(Rank::new(1)));
        let members: Vec<Rank> = world.ranks().collect();
        let text = ours.report(entry, "Timeout", "0", &members).to_string();
        assert!(text.contains("rank 1 was in call 1, barrier"), "{text}");
        assert!(text.contains("rank 2 did not answer"), "{text}");
    }

    #[test]
    fn a_rank_leaves_when_all_have_joined() {
        let (store, world) = (Store::hash().unwrap(), WorldSize::new(2).unwrap());
        let [first, late] = [0, 1].map(|rank| Reporter::start(&store, Rank::new(rank), world).unwrap());
        std::thread::scope(|scope| {
            let leaves = late.while_joining("0", &[], || {
                first.while_joining("0", &[], || Ok(()))?;
                let leaves = scope.spawn(|| first.leave_group("0"));
                store.get(&farewell_key("0", 0))?;
                // Enough time to leave, for a rank that does not wait.
                std::thread::sleep(POLL);
                assert!(!leaves.is_finished());
                Ok(leaves)
            });
            leaves.unwrap().join().unwrap();
        });
        assert!(first.shared.record().leaving.is_empty());
    }

    #[test]
    fn a_rank_that_failed_to_join_holds_nobody_up() {
        let (store, world) = (Store::hash().unwrap(), WorldSize::new(2).unwrap());
        let [first, late] = [0, 1].map(|rank| Reporter::start(&store, Rank::new(rank), world).unwrap());
        first.while_joining("0", &[], || Ok(())).unwrap();
        let failed = late.while_joining("0", &[], || Err::<(), _>(Error::bad_argument("joining", "a test's failure")));
        failed.unwrap_err();
        let farewell = first.shared.record().farewell();
        let leaving = Leaving { group: "0".to_owned(), farewell, published: false, waits: true };
        assert!(may_leave(&store, Rank::ZERO, &leaving).unwrap());
    }

    #[test]
    fn a_rank_that_waits_for_the_members_of_a_new_group_says_so() {
        let (store, world) = (Store::hash().unwrap(), WorldSize::new(2).unwrap());
        let [ours, theirs] = [0, 1].map(|rank| Reporter::start(&store, Rank::new(rank), world).unwrap());
        let members: Vec<Rank> = world.ranks().collect();
        let entry = ours.enter("0", &members, "barrier", CallKind::Collective, None);
        let report = theirs.while_joining("2", &members, || Ok(ours.report(entry, "Timeout", "0", &members))).unwrap();
        assert!(report.to_string().contains("rank 1 was joining group 2 of ranks 0, 1"), "{report}");
        assert_eq!(theirs.shared.record().state(), RankState::Between { finished: 0 });
    }

    #[test]
    fn a_failure_stays_until_an_operation_ends_that_began_after_it() {
        let store = Store::hash().unwrap();
        let reporter = Reporter::start(&store, Rank::ZERO, WorldSize::ONE).unwrap();
        let enter = |operation| reporter.enter("0", &[], operation, CallKind::Message, None);
        let (sent, received) = (enter("isend"), enter("recv"));
        let _ = reporter.report(received, "Timeout", "0", &[]);
        reporter.leave(sent);
        assert!(matches!(reporter.shared.record().state(), RankState::Failed { .. }));
        reporter.leave(enter("recv"));
        assert_eq!(reporter.shared.record().state(), RankState::Between { finished: 2 });
    }
}
