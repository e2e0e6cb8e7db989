//! The outcome of each rank in a call, the findings that follow from the outcomes alone, and hangs: all ranks sleep, or the deadline has
//! passed. After a hang the ranks are asked where they are; they answer through the store ([`lockstep_contract::desync_report`]), which
//! this process hosts.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lockstep_contract::background;
use lockstep_contract::desync_report::{ASKED, RankState, WHOLE_JOB, answer_key, farewell_key};
use lockstep_contract::exercise::Answer;
use lockstep_process::watchdog::{RunQueue, StallDetector, ThreadActivity, descendants, threads, threads_except};
use lockstep_process::{Exit, Orphan};
use tcpstore::Server;

use crate::{Finding, Verdict};

/// How a call ended on one rank.
#[derive(Clone, Debug, PartialEq)]
pub enum RankOutcome {
    /// The rank left an answer.
    Answered(Answer),
    /// Its process ended without an answer.
    Died(Exit),
    /// The rank was still running when the call was over.
    Stopped,
}

/// Returns true if a rank has left its results.
pub(super) fn is_done(outcome: &RankOutcome) -> bool {
    matches!(outcome, RankOutcome::Answered(Answer::Done { .. }))
}

/// The mismatch between the course's grading function and its program, if there is one.
pub(super) fn misunderstood(outcome: &RankOutcome) -> Option<String> {
    match outcome {
        RankOutcome::Answered(Answer::Misunderstood { why }) => Some(why.clone()),
        _ => None,
    }
}

/// Part of c10d's error on a rank that lost a peer. The cause is on the peer.
const CONSEQUENCE: &str = " lost a peer ";

/// The finding that explains the others: a `todo!()` comes before a panic or an error, and an error on a rank comes before the
/// errors of ranks that lost it as a peer.
pub(super) fn first_finding(outcomes: &[RankOutcome]) -> Option<Finding> {
    let findings = outcomes.iter().enumerate().filter_map(|(rank, outcome)| of_rank(rank, outcome));
    findings.min_by_key(|finding| match finding.verdict {
        Verdict::NotStarted => 0,
        _ if !finding.diagnosis.contains(CONSEQUENCE) => 1,
        _ => 2,
    })
}

fn of_rank(rank: usize, outcome: &RankOutcome) -> Option<Finding> {
    match outcome {
        RankOutcome::Answered(Answer::NotStarted { what }) => {
            Some(Finding::new(Verdict::NotStarted, format!("the answer is still a `todo!()`: {what}")))
        }
        RankOutcome::Answered(Answer::Panicked { message, place }) => {
            let at = place.as_ref().map_or(String::new(), |place| format!(" at {place}"));
            Some(Finding::new(Verdict::Crash, format!("the answer panicked{at}: {message}")).on_rank(rank))
        }
        RankOutcome::Answered(Answer::Failed { error }) => {
            Some(Finding::new(Verdict::Crash, format!("the answer returned an error: {error}")).on_rank(rank))
        }
        RankOutcome::Answered(Answer::Done { .. } | Answer::Misunderstood { .. })
        | RankOutcome::Died(_)
        | RankOutcome::Stopped => None,
    }
}

/// The finding for processes that ranks left running.
pub(super) fn leak(orphans: &[Orphan]) -> Option<Finding> {
    let name = |orphan: &Orphan| format!("{} (process {})", orphan.name, orphan.pid);
    let names: Vec<String> = orphans.iter().map(name).collect();
    let diagnosis = format!("the answer left processes running: {}; the grader has killed them", names.join(", "));
    (!names.is_empty()).then(|| Finding::new(Verdict::LeakedProcess, diagnosis))
}

/// The signals with which the kernel kills a process that exceeds a limit (signal(7)), and what the process did.
const LIMITS: [(i32, &str); 2] = [(24, "computed for longer"), (25, "wrote or printed more to one file")];

/// The finding for the first rank whose process ended without an answer.
pub(super) fn first_death(outcomes: &[RankOutcome]) -> Option<Finding> {
    outcomes.iter().enumerate().find_map(|(rank, outcome)| match outcome {
        RankOutcome::Died(exit) => Some(died(exit).on_rank(rank)),
        _ => None,
    })
}

fn died(exit: &Exit) -> Finding {
    let limit = LIMITS.iter().find(|(signal, _)| *exit == Exit::Signal(*signal));
    if let Some((_, what)) = limit {
        return Finding::new(
            Verdict::OutOfBounds,
            format!("the kernel killed the rank with {exit}: it {what} than is allowed"),
        );
    }
    let hint = match exit {
        Exit::Code(_) => "something in the answer ends the process",
        Exit::Signal(_) | Exit::NotStarted(_) => "see below what it printed last",
    };
    Finding::new(
        Verdict::Crash,
        format!("the rank's process ended before the answer was complete, with {exit}: {hint}"),
    )
}

/// Ranks that have slept this long are stalled.
const STILL: Duration = Duration::from_secs(5);
/// More CPU time than the background threads of sleeping ranks use in that time.
const NOTHING: Duration = Duration::from_millis(100);
/// What a turn of this process counts at most. On an idle machine it takes about half of it.
const TURN: Duration = Duration::from_millis(10);
/// Part of the diagnosis of a hang in which a rank does not wait.
pub const COMPUTES: &str = "a rank still computes";

/// A point in time, and how long the ranks had waited for a core until then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    at: Instant,
    lost: Duration,
}

/// Notices that processes do nothing.
#[derive(Debug)]
struct Sleepers {
    still: StallDetector,
    turns: u64,
}

/// Watches the ranks of one call.
///
/// In a rank that waits for a message no thread runs, except for those of the [background]. In one that computes, that waits for a core
/// to compute on, or that looks for something again and again, one does; so it does in a process that a rank has started and waits for.
/// So a deadlock is detected long before the deadline, and a slow machine is not mistaken for a deadlock.
///
/// On a busy machine, ranks that wait for one another in turns wait for a core in turns, too: each of many threads a little, and the
/// store, which is in this process, as well. So the deadline also counts the turns of this process, which come as late as theirs.
#[derive(Debug)]
pub(super) struct HangDetector {
    begun: Moment,
    ranks: Sleepers,
    /// The processes that ranks have started.
    below: Sleepers,
    queue: RunQueue,
    /// The time of all turns so far, and the last one.
    turns: (Duration, Instant),
}

impl HangDetector {
    pub(super) fn new(begun: Instant) -> Self {
        HangDetector {
            begun: Moment { at: begun, lost: Duration::ZERO },
            ranks: Sleepers::new(),
            below: Sleepers::new(),
            queue: RunQueue::default(),
            turns: (Duration::ZERO, begun),
        }
    }

    /// Counts a turn of this process. Must be called in each.
    pub(super) fn turn(&mut self, now: Instant) {
        let (sum, last) = self.turns;
        self.turns = (sum + (now - last).min(TURN), now);
    }

    /// Returns why these processes hang, if they do. Must be called often.
    pub(super) fn hang(&mut self, deadline: Duration, pids: &[u32], now: Instant) -> Option<String> {
        if self.ranks.are_stalled(pids, now) && self.is_stalled_below(pids, now) {
            return Some(format!("no rank has done anything for {} s", STILL.as_secs()));
        }
        let now = self.moment(pids, now);
        let over = now.is_later(deadline, self.begun) && self.turns.0 >= deadline;
        let computes = || pids.iter().filter_map(|pid| threads(*pid)).any(|rank| rank.used >= deadline / 2);
        over.then(|| match computes() {
            true => format!("not finished after {} s, and {COMPUTES}", deadline.as_secs()),
            false => format!("not finished after {} s", deadline.as_secs()),
        })
    }

    /// Returns true if none of the processes that ranks have started does anything.
    fn is_stalled_below(&mut self, pids: &[u32], now: Instant) -> bool {
        let below = descendants(pids);
        below.is_empty() || self.below.are_stalled(&below, now)
    }

    /// The current moment for these processes.
    pub(super) fn moment(&mut self, pids: &[u32], at: Instant) -> Moment {
        Moment { at, lost: self.queue.lost(pids) }
    }
}

impl Moment {
    /// Returns true if the ranks have had this much time since `then`, without the time that they waited for a core.
    pub(super) fn is_later(self, time: Duration, then: Moment) -> bool {
        self.at - then.at >= time + self.lost.saturating_sub(then.lost)
    }
}

impl Sleepers {
    fn new() -> Self {
        Sleepers { still: StallDetector::new(STILL, NOTHING), turns: 0 }
    }

    /// Returns true if no thread of these processes has run until `now` for [`STILL`], except in the background.
    fn are_stalled(&mut self, pids: &[u32], now: Instant) -> bool {
        self.have_stalled(pids.iter().map(|pid| threads_except(*pid, &background::THREADS)).collect(), now)
    }

    /// The same for what the processes are now; `None` if one is gone.
    fn have_stalled(&mut self, seen: Option<Vec<ThreadActivity>>, now: Instant) -> bool {
        let turns = seen.iter().flatten().map(|process| process.turns).sum();
        let ran = std::mem::replace(&mut self.turns, turns) != turns;
        let asleep = seen.filter(|all| !ran && !all.is_empty() && all.iter().all(|process| !process.awake));
        self.still.is_stalled(asleep.map(|all| all.iter().map(|process| process.used).sum()), now)
    }
}

/// How many looks to wait for answers: 2 s, and more on a busy machine. Ranks look for a request every 200 ms.
const LOOKS: usize = 100;
const LOOK: Duration = Duration::from_millis(20);
/// What comes between the call in which a rank waits and its others in progress.
pub const BESIDE: &str = "; also in progress: ";
/// What a rank does that waits for the members of a new group.
pub const JOINS: &str = "waits in new_group: group";
/// What comes between those.
pub const SEPARATOR: &str = " and ";

/// Each rank's state as text; ranks that do not answer are absent.
pub(super) fn collect(store: &Server, ranks: usize) -> BTreeMap<usize, String> {
    // The group's keys have a prefix.
    let Some(asked) = store.keys("").into_iter().find(|key| key.ends_with(ASKED)) else {
        return (0..ranks).map(|rank| (rank, "has joined no group".to_owned())).collect();
    };
    let prefix = asked.trim_end_matches(ASKED);
    let round = store.get(&asked).and_then(|count| String::from_utf8(count).ok()?.trim().parse::<i64>().ok());
    let round = round.unwrap_or(0) + 1;
    if store.set(&asked, round.to_string().as_bytes()).is_err() {
        return BTreeMap::new();
    }
    let answer = |rank: usize| {
        let keys = [answer_key(round, rank), farewell_key(WHOLE_JOB, rank)];
        let bytes = keys.iter().find_map(|key| store.get(&format!("{prefix}{key}")))?;
        Some((rank, describe(&RankState::parse(&bytes)?)))
    };
    let mut answers = BTreeMap::new();
    for _ in 0..LOOKS {
        answers = (0..ranks).filter_map(answer).collect();
        if answers.len() == ranks {
            break;
        }
        std::thread::sleep(LOOK);
    }
    answers
}

fn describe(at: &RankState) -> String {
    match at {
        RankState::In(call) if call.beside.is_empty() => format!("waits in {call}"),
        RankState::In(call) => format!("waits in {call}{BESIDE}{}", call.beside.join(SEPARATOR)),
        RankState::Failed { call, why } => format!("failed in {call} ({why})"),
        RankState::Joining { group, .. } if group == WHOLE_JOB => "waits in init_process_group".into(),
        RankState::Joining { group, members } => format!("{JOINS} {group} of ranks {members:?}"),
        RankState::Between { finished } => format!("is in no call, after {finished} finished calls"),
        RankState::Left { finished, panicking: false } => format!("has left the group after {finished} calls"),
        RankState::Left { finished, panicking: true } => format!("panicked after {finished} calls"),
        RankState::Aborted { finished } => format!("has aborted the group after {finished} calls"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use rustix::process::{Pid, Signal, kill_process_group};

    use super::*;

    fn failed(error: &str) -> RankOutcome {
        RankOutcome::Answered(Answer::Failed { error: error.into() })
    }

    #[test]
    fn blames_the_rank_that_failed_before_the_ranks_that_lost_it() {
        let lost =
            || failed("all_reduce(Sum) of [3] Double on rank 0 lost a peer after 0.03 s: rank 2 has left the group");
        let own = || failed("rank 3 is outside a group of 3");
        let blamed = |outcomes: &[RankOutcome]| first_finding(outcomes).unwrap().rank;
        assert_eq!(blamed(&[lost(), lost(), own()]), Some(2));
        assert_eq!(blamed(&[lost(), lost()]), Some(0));
        assert_eq!(blamed(&[own(), own()]), Some(0), "the first of several");
        let unfinished = RankOutcome::Answered(Answer::NotStarted { what: "todo".into() });
        assert_eq!(first_finding(&[own(), unfinished]).unwrap().verdict, Verdict::NotStarted);
    }

    #[test]
    fn processes_stall_while_all_are_there_and_no_thread_of_theirs_runs() {
        let begun = Instant::now();
        let process = |awake, turns| ThreadActivity { awake, used: Duration::ZERO, turns };
        let stalls = |then: Option<Vec<ThreadActivity>>| {
            let mut sleepers = Sleepers::new();
            let mut look = |seen, seconds| sleepers.have_stalled(seen, begun + Duration::from_secs(seconds));
            let asleep = || Some(vec![process(false, 7), process(false, 8)]);
            assert!(!look(asleep(), 0) && !look(asleep(), 1) && look(asleep(), 6));
            look(then, 7)
        };
        assert!(stalls(Some(vec![process(false, 7), process(false, 8)])));
        assert!(!stalls(Some(vec![process(false, 7), process(true, 8)])), "one is awake");
        assert!(!stalls(Some(vec![process(false, 7), process(false, 9)])), "one has run in between");
        assert!(!stalls(Some(vec![])) && !stalls(None), "one is gone");
    }

    #[test]
    fn takes_what_a_rank_has_started_for_its_own_work() {
        let mut shell = Command::new("sh").args(["-c", "while :; do :; done & wait"]).process_group(0).spawn().unwrap();
        let rank = [shell.id()];
        let working = || descendants(&rank).iter().any(|pid| threads(*pid).is_some_and(|seen| seen.awake));
        while !working() {
            std::thread::yield_now();
        }
        let mut detector = HangDetector::new(Instant::now());
        let later = |seconds| Instant::now() + Duration::from_secs(seconds);
        assert!(!detector.is_stalled_below(&rank, later(0)) && !detector.is_stalled_below(&rank, later(6)));
        assert!(detector.is_stalled_below(&[], later(6)));
        kill_process_group(Pid::from_child(&shell), Signal::KILL).unwrap();
        shell.wait().unwrap();
    }

    #[test]
    fn does_not_count_time_spent_waiting_for_a_core() {
        let (begun, seconds) = (Instant::now(), Duration::from_secs);
        let moment = |at, lost| Moment { at: begun + seconds(at), lost: seconds(lost) };
        assert!(moment(25, 1).is_later(seconds(20), moment(0, 0)));
        assert!(!moment(25, 6).is_later(seconds(20), moment(0, 0)), "the ranks had 19 of 25 s");
        assert!(moment(26, 6).is_later(seconds(20), moment(0, 0)));
        assert!(
            moment(26, 6).is_later(seconds(1), moment(20, 1)) && !moment(26, 6).is_later(seconds(2), moment(20, 1))
        );
    }

    #[test]
    fn reports_a_hang_at_the_deadline() {
        let begun = Instant::now();
        let mut detector = HangDetector::new(begun);
        let this = [std::process::id()];
        assert_eq!(detector.hang(Duration::from_secs(20), &this, begun), None);
        let late = begun + Duration::from_secs(3600);
        detector.turn(late);
        assert_eq!(detector.hang(Duration::from_secs(20), &this, late), None, "one turn, however long it took");
        for turn in 1..=2000 {
            detector.turn(late + TURN * turn);
        }
        let why = detector.hang(Duration::from_secs(20), &this, late + TURN * 2000);
        assert_eq!(why.as_deref(), Some("not finished after 20 s"));
        let why = detector.hang(Duration::ZERO, &this, late + TURN * 2000);
        assert_eq!(why.as_deref(), Some("not finished after 0 s, and a rank still computes"));
    }

    #[test]
    fn describes_where_ranks_are_now() {
        let say = |json: &str| describe(&RankState::parse(json.as_bytes()).unwrap());
        let call = r#"{"group":"0","number":3,"operation":"all_reduce of [4]"}"#;
        assert_eq!(say(&format!(r#"{{"In":{call}}}"#)), "waits in call 3, all_reduce of [4]");
        assert_eq!(say(r#"{"Between":{"finished":2}}"#), "is in no call, after 2 finished calls");
        let joining = |group| say(&format!(r#"{{"Joining":{{"group":"{group}","members":[0,2]}}}}"#));
        assert_eq!(joining("3"), "waits in new_group: group 3 of ranks [0, 2]");
        assert_eq!(joining("0"), "waits in init_process_group");
        let message = r#"{"In":{"group":"pair","number":null,"operation":"recv from rank 1"}}"#;
        assert_eq!(say(message), "waits in recv from rank 1 (group pair)");
        let two = r#"{"In":{"group":"0","number":null,"operation":"recv from rank 1","beside":["isend to rank 1"]}}"#;
        assert_eq!(say(two), "waits in recv from rank 1; also in progress: isend to rank 1");
    }
}
