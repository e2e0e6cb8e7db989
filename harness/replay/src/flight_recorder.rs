//! A replay of what PyTorch's flight recorder has of each rank, as far as its files go.
//!
//! They have when each call was made, and for collectives a number that is the same on all ranks. What they do not have is said
//! ([`Replay::missing`]) and, where it can be bounded, drawn at its bound: a collective without a recorded end cannot have ended before the
//! last of its ranks came to it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use lockstep_contract::counted;
use lockstep_launch::verdict::flight_recorder::{self, Recording, Recordings};

use crate::analyse;
use crate::model::{Attempt, Call, Group, Lane, Mark, MarkKind, Process, Replay, Source, Span, SpanKind, VERSION};

/// Without times, each call lasts as long as this, from the place in its rank's order.
const UNTIMED: u64 = 1;
/// How long what never ended lasts after all else, at least: more than what is a standstill.
const AFTER: u64 = 1_100_000_000;

/// The replay of the ranks whose recordings are at `path`: one rank's file, with those of the others next to it, or a folder. `None` if
/// these are no such recordings.
pub(crate) fn read(path: &Path) -> Option<Replay> {
    let recordings = flight_recorder::recorded_at(path);
    (!recordings.is_empty()).then(|| replay(&recordings))
}

fn replay(recordings: &Recordings) -> Replay {
    let all = || recordings.values().flat_map(|one| &one.calls);
    let timed = all().all(|call| call.time_created_ns.is_some());
    let began = if timed { all().filter_map(|call| call.time_created_ns).min().unwrap_or(0) } else { 0 };
    let groups = groups(recordings);
    let world = groups.values().flatten().chain(recordings.keys()).copied().collect::<BTreeSet<usize>>();
    let entered = Entered::of(recordings, timed, began);
    let mut source = Reader { timed, began, groups: &groups, entered: &entered, recordings, next: 0, guessed: 0 };
    let mut lanes: Vec<Lane> = world.into_iter().map(|rank| source.lane(rank)).collect();
    let guessed = source.guessed;
    let spans = || lanes.iter().flat_map(|lane| &lane.spans);
    let end = spans().map(|span| span.to.unwrap_or(span.from)).max().unwrap_or(0);
    // The files do not have the time of their writing, which was after some deadline.
    let end = end + (end / 10).max(if timed { AFTER } else { UNTIMED });
    for lane in lanes.iter_mut().filter(|lane| lane.recorded) {
        lane.processes = vec![Process { attempt: 0, pid: None, from: 0, to: None, ended: None, stopped: false }];
    }
    let mut replay = Replay {
        version: VERSION,
        source: Source::FlightRecorder,
        started: began as f64 / 1e9,
        end,
        attempts: vec![Attempt { number: 0, from: 0, to: None, ended: None }],
        groups: groups.into_iter().map(|(name, members)| Group { attempt: 0, name, members }).collect(),
        missing: missing(recordings, &lanes, timed, guessed),
        lanes,
        ..Replay::default()
    };
    analyse(&mut replay);
    if let Some(astray) = flight_recorder::astray(recordings, usize::MAX) {
        let lane = replay.lanes.iter().find(|lane| lane.rank == astray.rank);
        let at = lane.and_then(|lane| lane.spans.last()).map_or(end, |span| span.from);
        let text = format!("apart from the others: {}", astray.cause);
        let own = replay.lanes.iter_mut().find(|lane| lane.rank == astray.rank);
        own.into_iter()
            .for_each(|lane| lane.marks.push(Mark { at, attempt: 0, kind: MarkKind::Late, text: text.clone() }));
    }
    replay
}

/// The members of each group that has calls: as recorded, otherwise the ranks that called it.
fn groups(recordings: &Recordings) -> BTreeMap<String, Vec<usize>> {
    let mut groups: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
    for (rank, one) in recordings {
        for call in &one.calls {
            groups.entry(call.process_group.0.clone()).or_default().insert(*rank);
        }
    }
    let only = groups.len() == 1;
    let known = |name: &str| {
        let mut found = recordings.values().filter_map(|one| one.groups.get(name));
        found.find(|members| !members.is_empty()).cloned()
    };
    let named = |(name, callers): (String, BTreeSet<usize>)| {
        // Gloo's default group has no name there.
        let members = known(&name).or_else(|| known("").filter(|_| only || name == "0"));
        (name, members.unwrap_or_else(|| callers.into_iter().collect()))
    };
    groups.into_iter().map(named).collect()
}

/// When each rank came to each collective, and the operation's name.
struct Entered(HashMap<(String, u64), BTreeMap<usize, (u64, String)>>);

impl Entered {
    fn of(recordings: &Recordings, timed: bool, began: u64) -> Self {
        let mut entered: HashMap<(String, u64), BTreeMap<usize, (u64, String)>> = HashMap::new();
        for (rank, one) in recordings {
            for (place, call) in one.calls.iter().enumerate().filter(|(_, call)| !call.is_p2p) {
                let key = (call.process_group.0.clone(), call.collective_seq_id);
                let came = (moment(call, place, timed, began), call.profiling_name.clone());
                entered.entry(key).or_default().insert(*rank, came);
            }
        }
        Entered(entered)
    }
}

/// When a rank made the call: by its clock or, without times, its number.
fn moment(call: &flight_recorder::Call, place: usize, timed: bool, began: u64) -> u64 {
    match call.time_created_ns {
        Some(at) if timed => at - began,
        // Collectives of the same number are below each other.
        _ if !call.is_p2p => call.collective_seq_id * UNTIMED,
        _ => place as u64 * UNTIMED,
    }
}

struct Reader<'a> {
    timed: bool,
    began: u64,
    groups: &'a BTreeMap<String, Vec<usize>>,
    entered: &'a Entered,
    recordings: &'a Recordings,
    next: u32,
    /// How many ended calls have no recorded end.
    guessed: usize,
}

impl Reader<'_> {
    fn lane(&mut self, rank: usize) -> Lane {
        let Some(one) = self.recordings.get(&rank) else { return Lane { rank, ..Lane::default() } };
        let mut messages: HashMap<(String, bool, usize), u64> = HashMap::new();
        let whole = one.calls.first().is_none_or(|call| call.record_id == 0);
        let mut spans = Vec::new();
        for (place, call) in one.calls.iter().enumerate().filter(|(_, call)| !is_batch(call)) {
            let (kind, peer) = self.kind(call);
            let group = call.process_group.0.clone();
            let number = match peer {
                _ if kind == SpanKind::Collective => Some(call.collective_seq_id),
                // Counted from the first one, which must be there.
                Some(peer) if whole => {
                    let count = messages.entry((group.clone(), kind == SpanKind::Send, peer)).or_default();
                    *count += 1;
                    Some(*count)
                }
                _ => None,
            };
            let from = moment(call, place, self.timed, self.began);
            let to = self.end(rank, call, from, kind);
            let name = call.operation();
            self.next += 1;
            spans.push(Span {
                id: self.next - 1,
                attempt: 0,
                kind,
                name,
                from,
                waits_from: Some(from),
                to,
                error: None,
                call: Some(Call { group, number, bytes: bytes(call), peer, ..Call::default() }),
                step: None,
                matched: Vec::new(),
            });
        }
        spans.sort_by_key(|span| span.from);
        Lane { rank, recorded: true, spans, ..Lane::default() }
    }

    /// `nccl:send 0->1` and `nccl:recv 1<-0` name both ranks, as the group numbers them.
    fn kind(&self, call: &flight_recorder::Call) -> (SpanKind, Option<usize>) {
        let name = call.profiling_name.rsplit(':').next().unwrap_or_default();
        let kind = match name {
            name if name.starts_with("send") => SpanKind::Send,
            name if name.starts_with("recv") => SpanKind::Receive,
            _ => return (SpanKind::Collective, None),
        };
        let other = name.rsplit(['>', '-']).next().and_then(|text| text.trim().parse::<usize>().ok());
        let members = self.groups.get(&call.process_group.0);
        (kind, other.and_then(|place| members?.get(place).copied()))
    }

    /// When a call ended: as recorded, otherwise when the last rank came to it. A collective to which a rank did not come has not ended,
    /// though Gloo has given it up.
    fn end(&mut self, rank: usize, call: &flight_recorder::Call, from: u64, kind: SpanKind) -> Option<u64> {
        if let (Some(at), true) = (call.time_discovered_completed_ns, self.timed) {
            return Some((at.saturating_sub(self.began)).max(from));
        }
        if !call.retired {
            return None;
        }
        if kind != SpanKind::Collective {
            self.guessed += 1;
            return Some(from + if self.timed { 1000 } else { UNTIMED });
        }
        let (group, number) = (&call.process_group.0, call.collective_seq_id);
        let members = self.groups.get(group).map_or(&[][..], Vec::as_slice);
        let is_behind = |other: &usize| {
            self.recordings.get(other).is_some_and(|one| one.last(group).is_none_or(|last| last < number))
        };
        if members.iter().any(|other| *other != rank && is_behind(other)) {
            return None;
        }
        let came = &self.entered.0[&(group.clone(), number)];
        // Ranks in different operations have not ended either of them.
        if came.values().any(|(_, name)| *name != call.profiling_name) {
            return None;
        }
        self.guessed += 1;
        let last = came.values().map(|(at, _)| *at).max().unwrap_or(from).max(from);
        Some(last + if self.timed { 1000 } else { UNTIMED })
    }
}

/// An entry of NCCL's for several messages at once, which have entries of their own.
fn is_batch(call: &flight_recorder::Call) -> bool {
    call.profiling_name.ends_with(":coalesced")
}

/// The bytes of the tensors that a rank passed, if their types are known.
fn bytes(call: &flight_recorder::Call) -> Option<u64> {
    let size = |dtype: &str| match dtype {
        "Double" | "Long" | "ComplexFloat" => Some(8),
        "Float" | "Int" | "UInt32" => Some(4),
        "Half" | "BFloat16" | "Short" | "UInt16" => Some(2),
        "Byte" | "Char" | "Bool" => Some(1),
        name if name.starts_with("Float8") => Some(1),
        _ => None,
    };
    let one = |(sizes, dtype): (&Vec<i64>, &String)| {
        let count = sizes.iter().try_fold(1_u64, |count, size| count.checked_mul((*size).try_into().ok()?))?;
        count.checked_mul(size(dtype)?)
    };
    (call.input_sizes.len() == call.input_dtypes.len())
        .then(|| call.input_sizes.iter().zip(&call.input_dtypes).map(one).sum::<Option<u64>>())
        .flatten()
}

fn missing(recordings: &Recordings, lanes: &[Lane], timed: bool, guessed: usize) -> Vec<String> {
    let mut missing = vec![
        "PyTorch's flight recorder has calls only: no steps, snapshots or restarts, and no elements of tensors"
            .to_owned(),
        "a rank that is in a call is drawn as waiting; with NCCL the device waits, and the program may go on"
            .to_owned(),
    ];
    if !timed {
        missing.push("these files have no times: calls are drawn in their order".to_owned());
    } else if lanes.len() > 1 {
        missing.push("times are the ranks' own clocks'".to_owned());
    }
    if lanes.iter().flat_map(|lane| &lane.spans).any(|span| span.to.is_none()) && timed {
        missing.push("when the files were written is not in them: calls that never ended are drawn until a second after the last call".to_owned());
    }
    if guessed > 0 {
        missing.push(format!(
            "{} without a recorded end: drawn until the last rank came to the call, or for a microsecond",
            if guessed == 1 { "1 call is".to_owned() } else { format!("{guessed} calls are") }
        ));
    }
    let absent: Vec<String> = lanes.iter().filter(|lane| !lane.recorded).map(|lane| lane.rank.to_string()).collect();
    if !absent.is_empty() {
        missing.push(format!(
            "there is no file of rank{} {}",
            if absent.len() == 1 { "" } else { "s" },
            absent.join(", ")
        ));
    }
    let first = |one: &Recording| one.calls.first().map_or(0, |call| call.record_id);
    let overwritten = recordings.values().filter(|one| first(one) > 0).count();
    if overwritten > 0 {
        missing.push(format!(
            "the first calls of {} are overwritten (TORCH_FR_BUFFER_SIZE keeps more), so messages are not matched",
            counted(overwritten, "rank")
        ));
    }
    let mut calls = recordings.values().flat_map(|one| &one.calls).peekable();
    if calls.peek().is_some() && calls.all(|call| call.profiling_name.starts_with("gloo:") && !call.is_p2p) {
        missing.push("PyTorch records no messages over Gloo, only collectives".to_owned());
    }
    let lone =
        |span: &Span| span.call.as_ref().is_some_and(|call| call.peer.is_none()) && span.kind != SpanKind::Collective;
    let lone = lanes.iter().flat_map(|lane| &lane.spans).filter(|span| lone(span)).count();
    if lone > 0 {
        missing.push(format!("{} without the other rank's number, so not matched", counted(lone, "message")));
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded by Python's PyTorch: see `engine/launch/tests/flight_recorder/record.py`.
    fn recorded(name: &str) -> Replay {
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../engine/launch/tests/flight_recorder");
        read(&tests.join(name)).unwrap()
    }

    fn waits(replay: &Replay) -> Vec<(usize, Vec<usize>)> {
        let open = replay.waits.iter().filter(|wait| wait.to.is_none());
        open.map(|wait| (wait.rank, wait.on.iter().filter(|on| on.until.is_none()).map(|on| on.rank).collect()))
            .collect()
    }

    #[test]
    fn a_rank_that_did_not_come_is_waited_for_until_the_end() {
        for path in ["behind", "behind/rank_0"] {
            let replay = recorded(path);
            assert_eq!((replay.lanes.len(), replay.groups[0].members.len()), (3, 3));
            let mut found = waits(&replay);
            found.sort_unstable();
            assert_eq!(found, [(0, vec![1]), (2, vec![1])]);
            assert!(replay.lanes[1].marks[0].text.starts_with("apart from the others: it did not come to call 3"));
            assert_eq!(replay.lanes[0].spans[2].call.as_ref().unwrap().bytes, Some(80));
        }
    }

    #[test]
    fn shapes_that_differ_are_a_mismatch() {
        let replay = recorded("differs");
        assert_eq!(replay.mismatches.len(), 1, "{:?}", replay.mismatches);
        assert!(replay.mismatches[0].text.contains("[2, 2]"), "{}", replay.mismatches[0].text);
    }

    #[test]
    fn says_what_such_files_lack() {
        let missing = recorded("behind").missing.join("\n");
        for text in ["no elements of tensors", "own clocks", "without a recorded end", "no messages over Gloo"] {
            assert!(missing.contains(text), "{text} in {missing}");
        }
    }

    fn of(files: &[(usize, &str)]) -> Replay {
        let parsed = |(rank, entries): &(usize, &str)| {
            let text = format!(r#"{{"entries":[{entries}],"pg_config":{{"1":{{"ranks":[0,2]}}}}}}"#);
            (*rank, Recording::parse(text.as_bytes(), Path::new("x")).unwrap())
        };
        replay(&files.iter().map(parsed).collect())
    }

    fn message(name: &str, record: u64, at: &str) -> String {
        format!(
            r#"{{"record_id":{record},"process_group":["1","pair"],"collective_seq_id":0,"profiling_name":"nccl:{name}","is_p2p":true,"input_sizes":[[2]],"input_dtypes":["Half"],"retired":true{at}}}"#
        )
    }

    fn collective(name: &str, number: u64, at: u64) -> String {
        format!(
            r#"{{"record_id":{number},"process_group":["0","default_pg"],"collective_seq_id":{number},"profiling_name":"gloo:{name}","retired":true,"time_created_ns":{at}}}"#
        )
    }

    #[test]
    fn ranks_in_different_operations_wait_for_each_other_though_gloo_has_given_up() {
        let of_rank = |last: &str, at| [collective("all_reduce", 1, at), collective(last, 2, at + 1_000_000)].join(",");
        let (all_reduce, barrier) = (of_rank("all_reduce", 1_000), of_rank("barrier", 2_000));
        let replay = of(&[(0, &all_reduce), (1, &barrier), (2, &all_reduce)]);
        let ends: Vec<_> = replay.lanes.iter().map(|lane| (lane.spans[0].to.is_some(), lane.spans[1].to)).collect();
        assert_eq!(ends, [(true, None); 3]);
        let mut found = waits(&replay);
        found.sort_unstable();
        assert_eq!(found, [(0, vec![1]), (1, vec![0, 2]), (2, vec![1])]);
        assert_eq!((replay.mismatches.len(), replay.standstills.len()), (1, 1));
    }

    #[test]
    fn messages_are_matched_by_the_ranks_in_their_names_unless_the_first_are_overwritten() {
        for (first, matched) in [(0, 1), (5, 0)] {
            let (send, receive) = (message("send 0->1", first, ""), message("recv 1<-0", first, ""));
            let replay = of(&[(0, &send), (2, &receive)]);
            let peers: Vec<_> = replay.lanes.iter().map(|lane| lane.spans[0].call.as_ref().unwrap().peer).collect();
            // The group's ranks 0 and 1 are the job's 0 and 2.
            assert_eq!(peers, [Some(2), Some(0)]);
            assert_eq!(replay.lanes[0].spans[0].matched.len(), matched);
            assert_eq!(replay.missing.iter().any(|note| note.contains("overwritten")), matched == 0);
        }
    }

    #[test]
    fn files_without_times_are_drawn_in_the_order_of_calls() {
        let replay = of(&[(0, &message("send 0->1", 0, ""))]);
        assert_eq!(replay.started, 0.0);
        assert!(replay.missing.iter().any(|note| note.contains("no times")));
        assert!(replay.missing.iter().any(|note| note.contains("no file of rank 2")));
    }

    #[test]
    fn other_files_are_no_recordings() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("trace_0");
        for text in ["", "{}", "{\"recording\":1}\n", "\u{80}"] {
            std::fs::write(&file, text).unwrap();
            assert!(read(&file).is_none() && read(folder.path()).is_none(), "{text}");
        }
        assert!(read(Path::new("/nowhere")).is_none());
    }
}
