//! Watches the ranks of a call until all have ended, and ends them if they hang, that is, if all ranks sleep or the deadline has
//! passed. The hanging ranks are asked where they are; they answer through the store ([`lockstep_contract::desync_report`]), which
//! this process hosts.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use anyhow::bail;
use lockstep_contract::background;
use lockstep_contract::desync_report::{ASKED, RankState, WHOLE_JOB, answer_key, farewell_key};
use lockstep_process::proc::Status;
use lockstep_process::watchdog::{RunQueue, StallDetector, ThreadActivity, descendants, threads, threads_except};
use lockstep_process::{Died, Orphan, Workers};
use tcpstore::Server;

use super::Options;
use super::call::{CallResult, RunningCall, WORK, kept_recording, last_lines};
use super::outcome::{RankOutcome, is_done};
use crate::{Finding, Verdict, counted, joined};

/// The interval between two looks for the ranks' answers.
const POLL: Duration = Duration::from_millis(5);
/// The interval between two checks of what the ranks use.
const MEASURE: Duration = Duration::from_millis(100);
/// How long to wait for further outcomes once a rank has failed: another rank may report the cause, such as a `todo!()`.
const AFTER_FAILURE: Duration = Duration::from_millis(100);
/// After this time a line says which ranks have not finished, if stderr is a terminal.
const SILENT: Duration = Duration::from_secs(3);
/// How long ranks may take to end after they were dismissed.
const END: Duration = Duration::from_secs(5);
/// How long the kernel may take to free what was killed, while other processes write to the same disk.
const KILLED: Duration = Duration::from_secs(120);

impl RunningCall<'_> {
    /// Watches the ranks until all have ended, and kills those that hang.
    pub(super) fn watch(&self, workers: &mut Workers, pids: &[u32], limits: &Options) -> anyhow::Result<CallResult> {
        let (begin, mut measured) = (Instant::now(), Instant::now());
        let mut outcomes: Vec<Option<RankOutcome>> = vec![None; self.ranks];
        let mut failed: Option<Moment> = None;
        let (mut finding, mut detector) = (None, HangDetector::new(begin));
        let mut silent = std::io::stderr().is_terminal();
        while outcomes.iter().any(Option::is_none) && finding.is_none() {
            self.collect(&mut outcomes, workers)?;
            let now = Instant::now();
            detector.turn(now);
            // A rank that is done only waits for the others, so it cannot hang.
            let busy: Vec<u32> =
                pids.iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_none()).map(|(pid, _)| *pid).collect();
            if outcomes.iter().flatten().any(|outcome| !is_done(outcome)) {
                let now = detector.moment(&busy, now);
                // A rank that is ending may be what another has lost: the kernel closes its connections before it reports its end.
                let ends = |pid: &u32| Status::of(*pid as i32).is_none_or(|status| status.is_ending());
                if now.is_later(AFTER_FAILURE, *failed.get_or_insert(now)) && !busy.iter().any(ends) {
                    break;
                }
            }
            if silent && now - begin >= SILENT {
                silent = false;
                let _ = writeln!(
                    std::io::stderr(),
                    "waiting for ranks: {} of {} have not finished",
                    busy.len(),
                    self.ranks
                );
            }
            if now - measured >= MEASURE {
                (measured, finding) = (now, limits.bounds.broken(self.folder));
                let why = detector.hang(limits.deadline, &busy, now).filter(|_| finding.is_none());
                finding = why.map(|why| self.hang(&outcomes, pids, &why)).or(finding);
            }
        }
        if outcomes.iter().any(Option::is_none) {
            // The remaining ranks may wait forever for a failed one.
            workers.kill();
        }
        let begun = (0..self.ranks).map(|rank| self.answers.begun(rank)).collect();
        let orphans = self.end(workers)?;
        let outcomes = outcomes.into_iter().map(|outcome| outcome.unwrap_or(RankOutcome::Stopped)).collect();
        let (printed, notes) = (last_lines(self.folder, self.ranks), self.answers.notes(self.ranks));
        let left_files = self.folder.join(WORK).read_dir()?.next().is_some();
        let result = CallResult { outcomes, finding, begun, orphans, printed, notes, left_files, recording: None };
        let recording = self.keep(&result, pids, kept_recording());
        Ok(CallResult { recording, ..result })
    }

    /// Collects answers, and deaths of ranks that left none.
    fn collect(&self, outcomes: &mut [Option<RankOutcome>], workers: &mut Workers) -> anyhow::Result<()> {
        // An answer counts even if its process has died since, so it is read before the death is recorded.
        let died = workers.next(Some(Instant::now() + POLL))?;
        for (rank, outcome) in outcomes.iter_mut().enumerate().filter(|(_, outcome)| outcome.is_none()) {
            *outcome = self.answers.read(rank)?.map(RankOutcome::Answered);
        }
        if let Some(Died { index, exit, .. }) = died {
            outcomes[index].get_or_insert(RankOutcome::Died(exit));
        }
        Ok(())
    }

    /// Dismisses all ranks, kills those that do not end, and returns the processes that they left behind.
    fn end(&self, workers: &mut Workers) -> anyhow::Result<Vec<Orphan>> {
        self.answers.dismiss()?;
        let all_done = |workers: &Workers| workers.alive().is_empty();
        let mut until = Instant::now() + END;
        let mut killed = false;
        while !all_done(workers) {
            match workers.next(Some(until))? {
                Some(_) => {}
                None if killed => bail!("a rank did not die within {} s of a kill", KILLED.as_secs()),
                None => {
                    workers.kill();
                    (killed, until) = (true, Instant::now() + KILLED);
                }
            }
        }
        Ok(workers.sweep(KILLED).killed)
    }

    fn hang(&self, outcomes: &[Option<RankOutcome>], pids: &[u32], what: &str) -> Finding {
        let positions = collect(&self.store, self.ranks).unwrap_or_else(|| outside(pids));
        let line = |(rank, outcome): (usize, &Option<RankOutcome>)| match outcome {
            Some(RankOutcome::Answered(_)) => format!("rank {rank}: has finished"),
            Some(_) => format!("rank {rank}: has died"),
            None => format!("rank {rank}: {}", positions.get(&rank).map_or("does not answer", String::as_str)),
        };
        let table: Vec<String> = outcomes.iter().enumerate().map(line).collect();
        let is_waiting = |rank: &usize| {
            outcomes[*rank].is_none() && positions.get(rank).is_some_and(|at| at.starts_with("waits in"))
        };
        let has_finished = |rank: &usize| matches!(outcomes[*rank], Some(RankOutcome::Answered(_)));
        let waiting: Vec<usize> = (0..self.ranks).filter(is_waiting).collect();
        let finished: Vec<usize> = (0..self.ranks).filter(has_finished).collect();
        let mut diagnosis = what.to_owned();
        if !waiting.is_empty() && !finished.is_empty() {
            let (waiting, finished) = (does(&waiting, "waits", "wait"), does(&finished, "has", "have"));
            diagnosis += &format!(": {waiting} in a call, and {finished} finished without it");
        }
        Finding { table, ..Finding::new(Verdict::Hang, diagnosis) }
    }
}

/// `rank 0 waits`, `rank 0, rank 2 wait`.
fn does(ranks: &[usize], one: &str, more: &str) -> String {
    let names: Vec<String> = ranks.iter().map(|rank| format!("rank {rank}")).collect();
    format!("{} {}", joined(&names, ", "), if ranks.len() == 1 { one } else { more })
}

/// Ranks that have slept this long are stalled.
const STILL: Duration = Duration::from_secs(5);
/// More CPU time than the background threads of sleeping ranks use in that time.
const NOTHING: Duration = Duration::from_millis(100);
/// The maximum time that a turn of this process counts. On an idle machine a turn takes about half of it.
const TURN: Duration = Duration::from_millis(10);
/// Part of the diagnosis of a hang in which a rank does not wait.
pub(crate) const COMPUTES: &str = "a rank still computes";

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
/// In a rank that waits for a message, no thread runs, except for those of the [background]. In a rank that computes, waits for a core
/// or polls, a thread runs; or one runs in a process that the rank has started and waits for. So a deadlock is detected long before the
/// deadline, and a slow machine is not mistaken for a deadlock.
///
/// On a busy machine, ranks that wait for one another in turn also wait for a core in turn: each of many threads a little, and so
/// does the store in this process. So the deadline also counts the turns of this process, which are delayed like those of the ranks.
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
            return Some(format!("the ranks have done nothing for {} s", STILL.as_secs()));
        }
        let now = self.moment(pids, now);
        let over = now.is_later(deadline, self.begun) && self.turns.0 >= deadline;
        let computes = || pids.iter().filter_map(|pid| threads(*pid)).any(|rank| rank.used >= deadline / 2);
        over.then(|| match computes() {
            true => format!("not finished after {} s, and {COMPUTES}", deadline.as_secs()),
            false => format!("not finished after {} s", deadline.as_secs()),
        })
    }

    /// Returns true if all processes that ranks have started are idle.
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

    /// The same for these observed threads; `None` if a process is gone.
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
/// What comes between those others.
pub const SEPARATOR: &str = " and ";
/// What a rank that waits for the members of a new group does.
pub const JOINS: &str = "waits in new_group: group";
/// What a rank does that no other rank can keep waiting.
pub const IN_NO_CALL: &str = "is in no call";

/// What ranks do that have joined no group. A rank alone need not join one.
fn outside(pids: &[u32]) -> BTreeMap<usize, String> {
    let group = if pids.len() > 1 { ", and has joined no group" } else { "" };
    let does = |pid: &u32| if threads(*pid).is_some_and(|rank| rank.awake) { "computes" } else { "sleeps" };
    pids.iter().map(|pid| format!("{}{group}", does(pid))).enumerate().collect()
}

/// Each rank's state as text; ranks that do not answer are absent. `None` if no rank has joined a group.
pub(super) fn collect(store: &Server, ranks: usize) -> Option<BTreeMap<usize, String>> {
    // The group's keys have a prefix.
    let asked = store.keys("").into_iter().find(|key| key.ends_with(ASKED))?;
    let prefix = asked.trim_end_matches(ASKED);
    let round = store.get(&asked).and_then(|count| String::from_utf8(count).ok()?.trim().parse::<i64>().ok());
    let round = round.unwrap_or(0) + 1;
    if store.set(&asked, round.to_string().as_bytes()).is_err() {
        return Some(BTreeMap::new());
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
    Some(answers)
}

fn describe(at: &RankState) -> String {
    match at {
        RankState::In(call) if call.beside.is_empty() => format!("waits in {call}"),
        RankState::In(call) => format!("waits in {call}{BESIDE}{}", call.beside.join(SEPARATOR)),
        RankState::Failed { call, why } => format!("failed in {call} ({why})"),
        RankState::Joining { group, .. } if group == WHOLE_JOB => "waits in init_process_group".into(),
        RankState::Joining { group, members } => format!("{JOINS} {group} of ranks {members:?}"),
        RankState::Between { finished } => format!("{IN_NO_CALL}, after {}", counted(*finished, "finished call")),
        RankState::Left { finished, panicking: false } => {
            format!("has left the group after {}", counted(*finished, "call"))
        }
        RankState::Left { finished, panicking: true } => format!("panicked after {}", counted(*finished, "call")),
        RankState::Aborted { finished } => format!("has aborted the group after {}", counted(*finished, "call")),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use rustix::process::{Pid, Signal, kill_process_group};

    use super::*;

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
    fn says_what_ranks_do_that_have_joined_no_group() {
        let this = std::process::id();
        assert_eq!(outside(&[this]), BTreeMap::from([(0, "computes".to_owned())]));
        assert_eq!(outside(&[this, this])[&1], "computes, and has joined no group");
        let mut asleep = Command::new("sleep").arg("600").spawn().unwrap();
        while threads(asleep.id()).is_none_or(|seen| seen.awake) {
            std::thread::yield_now();
        }
        assert_eq!(outside(&[asleep.id()])[&0], "sleeps");
        asleep.kill().unwrap();
        asleep.wait().unwrap();
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
