//! Who waited for whom: matches the calls of each rank with those of the others.
//!
//! Collectives match by group and number, messages by group, sender, receiver, tag and number. A rank in a collective waits for the members
//! that have not called it, a receiver for its sender, a sender that does not return for its receiver.
//!
//! That a rank has *not* made a call is known only if all that it did is recorded. Where a [`Gap`](crate::model::Gap) of its lane may hide
//! the call, no wait for the rank is claimed.

use std::collections::{BTreeMap, BTreeSet};

use crate::lanes::ranks_text;
use crate::model::{Awaited, Lane, Mismatch, Process, Replay, Span, SpanKind, Standstill, Wait};

/// A wait that lasts longer is a standstill, if it never ends.
const STILL: u64 = 1_000_000_000;

/// The ends of calls at which standstills are looked for.
const MOST_ENDS: usize = 64;

/// Fills what is derived: [`Span::matched`], the waits, the calls that differ, the standstills, and for how long each rank was waited for.
pub fn analyse(replay: &mut Replay) {
    let (mut matched, mut waited_for) = (BTreeMap::new(), BTreeMap::<usize, u64>::new());
    let (mut waits, mut mismatches, mut standstills) = (Vec::new(), Vec::new(), Vec::new());
    for attempt in replay.attempts.iter().map(|attempt| attempt.number) {
        let calls = Calls::of(replay, attempt);
        calls.note_matches(&mut matched);
        mismatches.extend(calls.mismatches());
        let own: Vec<Wait> = calls.spans.values().filter_map(|call| calls.wait(call)).collect();
        for wait in own.iter().filter(|wait| !wait.any) {
            let end = calls.spans.get(&wait.span).map_or(wait.from, |call| calls.end_of(call));
            for on in &wait.on {
                *waited_for.entry(on.rank).or_default() += on.until.unwrap_or(end).saturating_sub(wait.from);
            }
        }
        standstills.extend(calls.standstill(&own));
        waits.extend(own);
    }
    waits.sort_by_key(|wait| (wait.from, wait.rank));
    mismatches.sort_by_key(|mismatch: &Mismatch| mismatch.at);
    for lane in &mut replay.lanes {
        lane.waited_for = waited_for.get(&lane.rank).copied().unwrap_or(0);
        lane.spans.iter_mut().for_each(|span| span.matched = matched.remove(&span.id).unwrap_or_default());
    }
    (replay.waits, replay.mismatches, replay.standstills) = (waits, mismatches, standstills);
}

/// A span with its rank.
#[derive(Clone, Copy)]
struct OnRank<'a> {
    rank: usize,
    span: &'a Span,
}

impl OnRank<'_> {
    fn failed(&self) -> bool {
        self.span.error.is_some()
    }

    /// It has not ended, or not well.
    fn is_stuck(&self) -> bool {
        self.span.to.is_none() || self.failed()
    }

    /// `barrier (call 3 of group 0)`.
    fn text(&self) -> String {
        let call = self.span.call.as_ref();
        let number = call.and_then(|call| call.number).filter(|_| self.span.kind == SpanKind::Collective);
        match (call, number) {
            (Some(call), Some(number)) => format!("{} (call {number} of group {})", self.span.name, call.group),
            (Some(call), None) if self.span.kind != SpanKind::Join && call.group != "0" => {
                format!("{} (group {})", self.span.name, call.group)
            }
            _ => self.span.name.clone(),
        }
    }
}

/// When a rank made a call that another one waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arrival {
    At(u64),
    Never,
    /// It may be among what is not recorded.
    Unknown,
}

/// The group, the sender, the receiver and the tag of messages.
type Route<'a> = (&'a str, usize, usize, u32);

/// The calls of one attempt.
struct Calls<'a> {
    attempt: u32,
    end: u64,
    lanes: BTreeMap<usize, &'a Lane>,
    /// By id.
    spans: BTreeMap<u32, OnRank<'a>>,
    members: BTreeMap<&'a str, &'a [usize]>,
    joins: BTreeMap<&'a str, Vec<OnRank<'a>>>,
    /// By group and number.
    collectives: BTreeMap<(&'a str, u64), Vec<OnRank<'a>>>,
    sends: BTreeMap<(Route<'a>, u64), OnRank<'a>>,
    receives: BTreeMap<(Route<'a>, u64), OnRank<'a>>,
    /// Receives from any rank that have not ended, by group, receiver and tag.
    any: BTreeSet<(&'a str, usize, u32)>,
}

impl<'a> Calls<'a> {
    fn of(replay: &'a Replay, attempt: u32) -> Self {
        let groups = replay.groups.iter().filter(|group| group.attempt == attempt);
        let mut calls = Calls {
            attempt,
            end: replay.end,
            lanes: replay.lanes.iter().map(|lane| (lane.rank, lane)).collect(),
            spans: BTreeMap::new(),
            members: groups.map(|group| (group.name.as_str(), group.members.as_slice())).collect(),
            joins: BTreeMap::new(),
            collectives: BTreeMap::new(),
            sends: BTreeMap::new(),
            receives: BTreeMap::new(),
            any: BTreeSet::new(),
        };
        for lane in &replay.lanes {
            for span in lane.spans.iter().filter(|span| span.attempt == attempt) {
                calls.add(OnRank { rank: lane.rank, span });
            }
        }
        calls
    }

    fn add(&mut self, on: OnRank<'a>) {
        let Some(call) = &on.span.call else { return };
        let (group, tag) = (call.group.as_str(), call.tag.unwrap_or(0));
        self.spans.insert(on.span.id, on);
        match (on.span.kind, call.number, call.peer) {
            (SpanKind::Join, ..) => self.joins.entry(group).or_default().push(on),
            (SpanKind::Collective, Some(number), _) => {
                self.collectives.entry((group, number)).or_default().push(on);
            }
            (SpanKind::Send, Some(number), Some(peer)) => {
                self.sends.insert(((group, on.rank, peer, tag), number), on);
            }
            (SpanKind::Receive, Some(number), Some(peer)) => {
                self.receives.insert(((group, peer, on.rank, tag), number), on);
            }
            (SpanKind::Receive, None, _) => {
                self.any.insert((group, on.rank, tag));
            }
            _ => {}
        }
    }

    fn note_matches(&self, matched: &mut BTreeMap<u32, Vec<u32>>) {
        for together in self.collectives.values() {
            for on in together {
                let same = together.iter().filter(|other| other.rank != on.rank && other.span.name == on.span.name);
                matched.insert(on.span.id, same.map(|other| other.span.id).collect());
            }
        }
        for (key, send) in &self.sends {
            if let Some(receive) = self.receives.get(key) {
                matched.insert(send.span.id, vec![receive.span.id]);
                matched.insert(receive.span.id, vec![send.span.id]);
            }
        }
    }

    fn mismatches(&self) -> Vec<Mismatch> {
        let mut found = Vec::new();
        for ((group, number), together) in &self.collectives {
            let mut by_name: BTreeMap<&str, Vec<OnRank<'_>>> = BTreeMap::new();
            together.iter().for_each(|on| by_name.entry(&on.span.name).or_default().push(*on));
            if by_name.len() < 2 {
                continue;
            }
            let mut called: Vec<(Vec<usize>, &str)> = Vec::new();
            for (name, all) in &by_name {
                let mut ranks: Vec<usize> = all.iter().map(|on| on.rank).collect();
                ranks.sort_unstable();
                called.push((ranks, name));
            }
            called.sort();
            let called = called.iter().map(|(ranks, name)| format!("{} called {name}", ranks_text(ranks)));
            // The first moment at which two differ.
            let first = by_name.values().filter_map(|all| all.iter().map(|on| on.span.from).min()).max();
            found.push(Mismatch {
                at: first.unwrap_or(0),
                attempt: self.attempt,
                group: (*group).to_owned(),
                number: *number,
                spans: together.iter().map(|on| on.span.id).collect(),
                text: format!("call {number} of group {group}: {}", called.collect::<Vec<_>>().join(", ")),
            });
        }
        found
    }

    fn process(&self, rank: usize) -> Option<&'a Process> {
        self.lanes.get(&rank)?.processes.iter().find(|process| process.attempt == self.attempt)
    }

    /// When the rank's process ended, or the recording.
    fn life_end(&self, rank: usize) -> u64 {
        self.process(rank).and_then(|process| process.to).unwrap_or(self.end)
    }

    fn end_of(&self, on: &OnRank<'_>) -> u64 {
        on.span.to.unwrap_or_else(|| self.life_end(on.rank).max(on.span.from))
    }

    /// Until when the recording of a rank lacks lines: `None` if it is whole.
    fn last_gap(&self, rank: usize, process: &Process) -> Option<u64> {
        let to = process.to.unwrap_or(self.end);
        let gaps = self.lanes.get(&rank).map_or(&[][..], |lane| lane.gaps.as_slice());
        gaps.iter().filter(|gap| gap.to >= process.from && gap.from <= to).map(|gap| gap.to).max()
    }

    /// What is known about a call with this number that is not recorded; `recorded` has the numbers and times of the rank's other calls
    /// that are counted with it.
    fn absent(&self, rank: usize, number: u64, recorded: impl Iterator<Item = (u64, u64)>) -> Arrival {
        let Some(process) = self.process(rank) else { return Arrival::Unknown };
        let Some(gap) = self.last_gap(rank, process) else { return Arrival::Never };
        let after: Vec<u64> = recorded.filter(|(_, from)| *from >= gap).map(|(number, _)| number).collect();
        // A later number means that the call was made in the gap.
        match after.is_empty() || after.iter().any(|other| *other > number) {
            true => Arrival::Unknown,
            false => Arrival::Never,
        }
    }

    /// When `member` made this collective.
    fn arrival(&self, call: &OnRank<'a>, member: usize) -> Arrival {
        let Some((group, number)) = call.span.call.as_ref().and_then(|of| Some((of.group.as_str(), of.number?))) else {
            return Arrival::Unknown;
        };
        let own = self.collectives.get(&(group, number)).and_then(|all| all.iter().find(|on| on.rank == member));
        match own {
            Some(on) if on.span.name == call.span.name => Arrival::At(on.span.from),
            // It has called something else in its place.
            Some(_) => Arrival::Never,
            None => {
                let of_group = self.collectives.range((group, 0)..=(group, u64::MAX));
                let numbers = of_group.flat_map(|((_, number), all)| {
                    let own = all.iter().filter(|on| on.rank == member);
                    own.map(|on| (*number, on.span.from))
                });
                self.absent(member, number, numbers)
            }
        }
    }

    fn joined(&self, group: &str, member: usize) -> Arrival {
        let own = self.joins.get(group).and_then(|all| all.iter().find(|on| on.rank == member));
        match own {
            Some(on) => Arrival::At(on.span.from),
            None => self.absent(member, 0, std::iter::empty()),
        }
    }

    /// When the other side of a message came.
    fn other_side(&self, on: &OnRank<'a>) -> Option<(usize, Arrival)> {
        let call = on.span.call.as_ref()?;
        let (peer, number, tag) = (call.peer?, call.number?, call.tag.unwrap_or(0));
        let group = call.group.as_str();
        let (others, route) = match on.span.kind {
            SpanKind::Send => (&self.receives, (group, on.rank, peer, tag)),
            _ => (&self.sends, (group, peer, on.rank, tag)),
        };
        if let Some(other) = others.get(&(route, number)) {
            return Some((peer, Arrival::At(other.span.from)));
        }
        if on.span.kind == SpanKind::Send && self.any.contains(&(group, peer, tag)) {
            return Some((peer, Arrival::Unknown));
        }
        let numbers = others.range((route, 0)..=(route, u64::MAX)).map(|((_, number), on)| (*number, on.span.from));
        Some((peer, self.absent(peer, number, numbers)))
    }

    fn wait(&self, call: &OnRank<'a>) -> Option<Wait> {
        let span = call.span;
        let (from, end) = (span.waits_from?, self.end_of(call));
        let group = span.call.as_ref()?.group.as_str();
        let members = self.members.get(group).copied().unwrap_or_default().iter().copied();
        let others = members.filter(|member| *member != call.rank);
        let any = span.kind == SpanKind::Receive && span.call.as_ref()?.peer.is_none();
        let arrivals: Vec<(usize, Arrival)> = match span.kind {
            SpanKind::Collective => others.map(|member| (member, self.arrival(call, member))).collect(),
            SpanKind::Join => others.map(|member| (member, self.joined(group, member))).collect(),
            SpanKind::Receive if any => others.map(|member| (member, Arrival::Never)).collect(),
            SpanKind::Send | SpanKind::Receive => self.other_side(call).into_iter().collect(),
            SpanKind::Step | SpanKind::Snapshot => return None,
        };
        let awaited = |(rank, arrival)| match arrival {
            Arrival::At(at) if at > from && (at <= end || span.kind != SpanKind::Send) => {
                // A call that ended well ended after all came, unless clocks differ.
                let until = if call.is_stuck() { Some(at).filter(|at| *at <= end) } else { Some(at.min(end)) };
                Some(Awaited { rank, until })
            }
            Arrival::Never if call.is_stuck() => Some(Awaited { rank, until: None }),
            _ => None,
        };
        let mut on: Vec<Awaited> = arrivals.into_iter().filter_map(awaited).collect();
        on.sort_by_key(|awaited| awaited.rank);
        if on.is_empty() || from >= end {
            return None;
        }
        let to = on.iter().map(|awaited| awaited.until).try_fold(from, |last, until| Some(last.max(until?)));
        let why = to.is_none().then(|| self.why(call, &on, any, end));
        Some(Wait { rank: call.rank, attempt: self.attempt, span: span.id, from, to, on, any, why })
    }

    /// Why a wait did not end, with at most three of the ranks.
    fn why(&self, call: &OnRank<'a>, on: &[Awaited], any: bool, end: u64) -> String {
        const MOST: usize = 3;
        if any {
            return format!("no rank has sent a message for {}", call.text());
        }
        let done = match call.span.kind {
            SpanKind::Send => "received",
            SpanKind::Receive => "sent",
            SpanKind::Join => "begun to",
            _ => "called",
        };
        let never: Vec<usize> = on.iter().filter(|on| on.until.is_none()).map(|on| on.rank).collect();
        let one = |rank: &usize| {
            let what = match call.span.kind {
                SpanKind::Send | SpanKind::Receive => format!("has not {done} what {} is for", call.text()),
                _ => format!("has not {done} {}", call.text()),
            };
            format!("rank {rank} {what}: {}", self.doing(*rank, end))
        };
        let mut parts: Vec<String> = never.iter().take(MOST).map(one).collect();
        if never.len() > MOST {
            parts.push(format!("{} neither", ranks_text(&never[MOST..])));
        }
        parts.join("; ")
    }

    /// What a rank is doing at a moment.
    fn doing(&self, rank: usize, at: u64) -> String {
        let process = self.process(rank);
        if let Some(Process { to: Some(to), ended, stopped: false, .. }) = process
            && *to <= at
        {
            return match ended {
                Some(how) => format!("its process has ended ({how})"),
                None => "its process has ended".to_owned(),
            };
        }
        // What it did when the launcher stopped it.
        let at = at.min(self.life_end(rank));
        let own = || self.spans.values().filter(|on| on.rank == rank && on.span.from <= at);
        let open = own().filter(|on| on.span.to.is_none_or(|to| to >= at));
        if let Some(on) = open.min_by_key(|on| (on.span.waits_from.is_none(), on.span.from)) {
            return format!("it is in {}", on.text());
        }
        match own().filter_map(|on| Some((on.span.to?, on))).max_by_key(|(to, _)| *to) {
            Some((_, last)) => match &last.span.error {
                Some(error) => format!("it was in {}, which failed ({error})", last.text()),
                None => format!("it is in no call, after {}", last.text()),
            },
            None => "it has called nothing".to_owned(),
        }
    }

    /// Who stood still first, if the attempt did: ranks waited for others when calls failed, or when processes ended in their calls.
    fn standstill(&self, waits: &[Wait]) -> Option<Standstill> {
        let stuck = self.spans.values().filter(|on| on.is_stuck() && on.span.waits_from.is_some());
        let ends: BTreeSet<u64> = stuck.map(|on| self.end_of(on)).collect();
        ends.into_iter().take(MOST_ENDS).find_map(|at| self.standstill_at(at, waits))
    }

    fn standstill_at(&self, at: u64, waits: &[Wait]) -> Option<Standstill> {
        // The waits of that moment: those of the calls that failed then, and of those that go on.
        let blocked: BTreeMap<usize, &Wait> = waits
            .iter()
            .filter(|wait| wait.from < at && self.spans.get(&wait.span).is_some_and(|call| self.end_of(call) >= at))
            .filter(|wait| wait.to.is_none())
            .map(|wait| (wait.rank, wait))
            .collect();
        let on =
            |wait: &Wait| -> Vec<usize> { wait.on.iter().filter(|on| on.until.is_none()).map(|on| on.rank).collect() };
        let awaited: BTreeSet<usize> = blocked.values().flat_map(|wait| on(wait)).collect();
        let roots: Vec<usize> = awaited.iter().copied().filter(|rank| !blocked.contains_key(rank)).collect();
        if !roots.is_empty() {
            return self.stood_still(&roots, &blocked, at);
        }
        let circle = circle(&blocked.iter().map(|(rank, wait)| (*rank, on(wait))).collect())?;
        let calls: Vec<String> = circle.iter().filter_map(|rank| blocked.get(rank)?.why.clone()).collect();
        let closed = circle.iter().filter_map(|rank| blocked.get(rank)).map(|wait| wait.from).max()?;
        let text = format!("{} wait for each other: {}", ranks_text(&circle), calls.join("; "));
        Some(Standstill { attempt: self.attempt, at: closed, ranks: circle, circle: true, text })
    }

    /// Others wait for `roots`, which wait for nobody.
    fn stood_still(&self, roots: &[usize], blocked: &BTreeMap<usize, &Wait>, at: u64) -> Option<Standstill> {
        let timed_out =
            |wait: &&Wait| self.spans.get(&wait.span).is_some_and(|call| call.span.error.as_deref() == Some("Timeout"));
        let lasted = blocked.values().any(|wait| at - wait.from >= STILL) || blocked.values().any(timed_out);
        // The first one that ended by itself, and not because of a failed call. The launcher may notice the end after the calls of others
        // have failed.
        let failed = |rank: usize| self.spans.values().any(|on| on.rank == rank && on.failed());
        let ended = |rank: &usize| {
            let process = self.process(*rank).filter(|process| !process.stopped)?;
            Some((process.to?, *rank))
        };
        let gone = roots.iter().filter(|rank| !failed(**rank)).filter_map(ended).min();
        let (roots, at) = match &gone {
            Some((to, rank)) => (std::slice::from_ref(rank), at.max(*to)),
            // A run that was stopped in the middle has open waits, too.
            None if !lasted => return None,
            None => (roots, at),
        };
        let last_act = |rank: &usize| {
            let own = self.spans.values().filter(|on| on.rank == *rank && on.span.from <= at);
            let acts = own.flat_map(|on| [Some(on.span.from), on.span.to]).flatten().filter(|t| *t <= at);
            let died = self.process(*rank).and_then(|process| process.to).filter(|to| *to <= at);
            acts.chain(died).max()
        };
        let since = roots.iter().filter_map(last_act).min().or(self.process(roots[0]).map(|process| process.from))?;
        let waiting: Vec<usize> = blocked.keys().copied().collect();
        let doing: Vec<String> = roots.iter().map(|rank| format!("rank {rank}: {}", self.doing(*rank, at))).collect();
        let verb = if waiting.len() == 1 { "waits" } else { "wait" };
        let text = format!("{} {verb} for {}; {}", ranks_text(&waiting), ranks_text(roots), doing.join("; "));
        Some(Standstill { attempt: self.attempt, at: since, ranks: roots.to_vec(), circle: false, text })
    }
}

/// The ranks of a circle of waits, where each waits for others that wait, too. There is one if nobody is waited for without waiting.
fn circle(waits: &BTreeMap<usize, Vec<usize>>) -> Option<Vec<usize>> {
    let reach = |from: usize| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(rank) = next.pop() {
            for on in waits.get(&rank).into_iter().flatten() {
                if seen.insert(*on) {
                    next.push(*on);
                }
            }
        }
        seen
    };
    let reached: BTreeMap<usize, BTreeSet<usize>> = waits.keys().map(|rank| (*rank, reach(*rank))).collect();
    let first = reached.iter().find(|(rank, to)| to.contains(rank))?;
    let back = |rank: &&usize| reached.get(rank).is_some_and(|to| to.contains(first.0));
    Some(first.1.iter().filter(back).copied().collect())
}

#[cfg(test)]
mod tests {
    use lockstep_contract::recording::{Form, Kind};

    use super::*;
    use crate::testing::{Recording, ms};

    /// Rank, start and end in milliseconds, and for whom until when.
    type Shown = (usize, u64, Option<u64>, Vec<(usize, Option<u64>)>);

    fn waits(replay: &Replay) -> Vec<Shown> {
        let shown = |wait: &Wait| {
            let on = wait.on.iter().map(|on| (on.rank, on.until.map(ms))).collect();
            (wait.rank, ms(wait.from), wait.to.map(ms), on)
        };
        replay.waits.iter().map(shown).collect()
    }

    #[test]
    fn a_rank_in_a_collective_waits_for_the_members_that_have_not_called_it() {
        let mut run = Recording::new(3);
        for (rank, from) in [(0, 10), (1, 12), (2, 15)] {
            run.collective(rank, from, "all_reduce", "0", 1).leave(rank, 16, None);
        }
        let replay = run.read();
        assert_eq!(
            waits(&replay),
            [(0, 10, Some(15), vec![(1, Some(12)), (2, Some(15))]), (1, 12, Some(15), vec![(2, Some(15))])]
        );
        assert_eq!(replay.lanes.iter().map(|lane| ms(lane.waited_for)).collect::<Vec<_>>(), [0, 2, 8]);
        let calls: Vec<&Span> =
            replay.lanes.iter().flat_map(|lane| &lane.spans).filter(|span| span.name == "all_reduce").collect();
        assert_eq!(calls[0].matched, [calls[1].id, calls[2].id]);
        assert!(replay.standstills.is_empty() && replay.mismatches.is_empty());
    }

    #[test]
    fn an_asynchronous_call_holds_nobody_up_before_the_rank_waits_for_it() {
        let mut run = Recording::new(2);
        run.enter(0, 10, Form::Async, Kind::Collective, "all_reduce", "0", Some(1), None)
            .wait(0, 14)
            .leave(0, 20, None);
        run.enter(1, 18, Form::Async, Kind::Collective, "all_reduce", "0", Some(1), None).leave(1, 20, None);
        assert_eq!(waits(&run.read()), [(0, 14, Some(18), vec![(1, Some(18))])]);
    }

    #[test]
    fn a_receiver_waits_for_its_sender_and_a_sender_that_does_not_return_for_its_receiver() {
        let mut run = Recording::new(2);
        run.message(0, 10, Kind::Receive, 1, Some(1)).wait(0, 10).leave(0, 16, None);
        run.message(1, 15, Kind::Send, 0, Some(1)).wait(1, 15).leave(1, 16, None);
        // This one returns at once, as with shared memory.
        run.message(1, 17, Kind::Send, 0, Some(2)).wait(1, 17).leave(1, 18, None);
        run.message(0, 19, Kind::Receive, 1, Some(2)).wait(0, 19).leave(0, 20, None);
        // As with Gloo.
        run.message(0, 21, Kind::Send, 1, Some(1)).wait(0, 21).leave(0, 26, None);
        run.message(1, 25, Kind::Receive, 0, Some(1)).wait(1, 25).leave(1, 26, None);
        let replay = run.read();
        assert_eq!(waits(&replay), [(0, 10, Some(15), vec![(1, Some(15))]), (0, 21, Some(25), vec![(1, Some(25))])]);
        let matched = |rank: usize, place: usize| {
            let messages = replay.lanes[rank].spans.iter().filter(|span| span.kind != SpanKind::Join);
            let span = messages.into_iter().nth(place).unwrap();
            (span.id, span.matched.clone())
        };
        assert_eq!(matched(0, 0).1, [matched(1, 0).0]);
        assert_eq!(matched(0, 1).1, [matched(1, 1).0]);
    }

    #[test]
    fn ranks_in_the_collectives_of_two_groups_wait_for_each_other() {
        let mut run = Recording::new(2);
        for group in ["1", "2"] {
            (0..2).for_each(|rank| run.join(rank, 5, group, &[0, 1]));
        }
        run.collective(0, 10, "barrier", "1", 1).collective(1, 12, "barrier", "2", 1);
        let replay = run.ends(0, 5000, -15).ends(1, 5000, -15).read();
        assert_eq!(waits(&replay), [(0, 10, None, vec![(1, None)]), (1, 12, None, vec![(0, None)])]);
        let why = replay.waits[0].why.as_deref().unwrap();
        let expected = "rank 1 has not called barrier (call 1 of group 1): it is in barrier (call 1 of group 2)";
        assert_eq!(why, expected);
        let [standstill] = &replay.standstills[..] else { panic!("{:?}", replay.standstills) };
        assert_eq!((&standstill.ranks[..], standstill.circle, ms(standstill.at)), (&[0, 1][..], true, 12));
        assert!(standstill.text.starts_with("ranks 0 and 1 wait for each other: rank 1 has not called barrier"));
    }

    #[test]
    fn a_killed_rank_stood_still_first_also_if_its_end_was_noticed_after_the_failures() {
        let mut run = Recording::new(3);
        for rank in 0..3 {
            run.collective(rank, 10, "all_reduce", "0", 1).leave(rank, 11, None);
        }
        for rank in [0, 1] {
            run.collective(rank, 20, "all_reduce", "0", 2).leave(rank, 30, Some("PeerGone"));
        }
        let replay = run.ends(2, 31, -9).ends(0, 40, 1).ends(1, 40, -15).read();
        let [standstill] = &replay.standstills[..] else { panic!("{:?}", replay.standstills) };
        assert_eq!((&standstill.ranks[..], standstill.circle), (&[2][..], false));
        assert!(
            standstill
                .text
                .contains("ranks 0 and 1 wait for rank 2; rank 2: its process has ended (killed by SIGKILL)"),
            "{}",
            standstill.text
        );
        assert_eq!(replay.attempts[0].ended.as_deref(), Some("rank 2 was killed by SIGKILL"));
    }

    #[test]
    fn a_rank_that_computes_for_ever_stood_still_first_once_a_wait_has_timed_out() {
        let mut run = Recording::new(2);
        run.collective(1, 10, "barrier", "0", 1).leave(1, 10, None);
        run.collective(0, 8, "barrier", "0", 1).leave(0, 10, None);
        run.collective(0, 20, "barrier", "0", 2).leave(0, 40, Some("Timeout"));
        let replay = run.ends(0, 45, 1).ends(1, 46, -15).read();
        let [standstill] = &replay.standstills[..] else { panic!("{:?}", replay.standstills) };
        assert_eq!((&standstill.ranks[..], ms(standstill.at)), (&[1][..], 10));
        assert!(
            replay.waits[1].why.as_deref().unwrap().ends_with("it is in no call, after barrier (call 1 of group 0)")
        );
    }

    #[test]
    fn a_run_that_was_stopped_in_the_middle_did_not_stand_still() {
        let mut run = Recording::new(2);
        run.collective(0, 10, "barrier", "0", 1);
        let replay = run.ends(0, 20, -2).ends(1, 20, -2).read();
        assert_eq!(waits(&replay).len(), 1);
        assert!(replay.standstills.is_empty());
    }

    #[test]
    fn names_calls_that_differ_and_who_waits_because_of_them() {
        let mut run = Recording::new(3);
        run.collective(0, 10, "all_reduce", "0", 1).collective(1, 12, "barrier", "0", 1).collective(
            2,
            11,
            "all_reduce",
            "0",
            1,
        );
        let replay = run.ends(0, 3000, -15).ends(1, 3000, -15).ends(2, 3000, -15).read();
        let [mismatch] = &replay.mismatches[..] else { panic!("{:?}", replay.mismatches) };
        assert_eq!(mismatch.text, "call 1 of group 0: ranks 0 and 2 called all_reduce, rank 1 called barrier");
        assert_eq!(ms(mismatch.at), 12);
        assert_eq!(waits(&replay)[0], (0, 10, None, vec![(1, None), (2, Some(11))]));
        assert!(replay.standstills[0].circle);
    }

    #[test]
    fn claims_nothing_of_a_rank_whose_lines_may_be_missing() {
        let hang = || {
            let mut run = Recording::new(3);
            for rank in 0..3 {
                run.collective(rank, 10, "barrier", "0", 1).leave(rank, 11, None);
            }
            run.collective(0, 20, "barrier", "0", 2);
            run.collective(1, 20, "barrier", "0", 2);
            run
        };
        let ended = |mut run: Recording| run.ends(0, 5000, -15).ends(1, 5000, -15).ends(2, 5000, -15).read();
        let known = ended(hang());
        assert_eq!(known.standstills[0].ranks, [2]);
        // A torn line may have been the call.
        let mut torn = hang();
        torn.raw(2, "{\"t\":17643");
        // No line of the rank is there.
        let mut lost = hang();
        lost.forget(2);
        for replay in [ended(torn), ended(lost)] {
            assert!(replay.waits.iter().all(|wait| wait.to.is_some()), "{:?}", replay.waits);
            assert!(replay.standstills.is_empty(), "{:?}", replay.standstills);
            assert!(!replay.missing.is_empty());
        }
        // Older lines were dropped, but a later call of the group is there, so the next one was not made.
        let mut dropped = hang();
        dropped.drop_lines(2, 7);
        assert_eq!(ended(dropped).standstills[0].ranks, [2]);
    }

    #[test]
    fn a_receive_from_any_rank_waits_for_any() {
        let mut run = Recording::new(3);
        run.enter(0, 10, Form::Async, Kind::Receive, "recv_any", "0", None, None).wait(0, 10);
        let replay = run.ends(0, 5000, -15).ends(1, 5000, 0).ends(2, 5000, 0).read();
        assert!(replay.waits[0].any);
        assert_eq!(replay.waits[0].on.len(), 2);
        assert_eq!(replay.waits[0].why.as_deref(), Some("no rank has sent a message for recv_any"));
    }
}
