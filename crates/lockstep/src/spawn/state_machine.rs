//! The state machine of a call: decides what to do when a worker dies or a deadline passes, without processes, clocks
//! or files.
//!
//! Time is an argument and actions are return values; [`parent`](super::parent) carries them out.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use lockstep_process::{Exit, KILL_LIMIT, Signal};

use super::error::{Failure, Report, SpawnError, Stage, Stopped, StoppedBy};
use crate::error_file::{Kind, Recorded};
use crate::{Rank, WorldSize};

/// An input of the state machine.
#[derive(Debug)]
pub(super) enum Event {
    /// Processes ended, in this order, before any signal that a later action sends.
    Died(Vec<(Rank, Ending)>),
    /// [`StateMachine::deadline`] has passed.
    DeadlinePassed,
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Wait for the next event.
    Wait,
    /// Send this signal to these ranks, then wait.
    Signal(Signal, Vec<Rank>),
    /// The call is finished: see [`StateMachine::verdict`].
    Finish,
}

/// How a process ended and what it recorded.
#[derive(Clone, Debug)]
pub(super) struct Ending {
    /// Or why it is not known.
    pub(super) status: Result<Exit, String>,
    pub(super) stage: Stage,
    pub(super) record: Option<Recorded>,
    /// Why the record cannot be read, if it exists and cannot be.
    pub(super) note: Option<String>,
}

/// A call of spawn from the start of its processes to its result.
pub(super) struct StateMachine {
    alive: BTreeSet<Rank>,
    deaths: Vec<Death>,
    phase: RunPhase,
    started: Instant,
    timeout: Option<Duration>,
    timed_out: bool,
    grace: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RunPhase {
    Running,
    /// SIGTERM was sent; SIGKILL follows at this time.
    Terminating(Instant),
    /// SIGKILL was sent; processes still alive at this time are abandoned.
    Killing(Instant),
}

struct Death {
    rank: Rank,
    ending: Ending,
    phase: RunPhase,
}

impl StateMachine {
    pub(super) fn new(world: WorldSize, grace: Duration, timeout: Option<Duration>, now: Instant) -> Self {
        let alive = world.ranks().collect();
        StateMachine {
            alive,
            deaths: Vec::new(),
            phase: RunPhase::Running,
            started: now,
            timeout,
            timed_out: false,
            grace,
        }
    }

    /// When [`Event::DeadlinePassed`] is due; `None` if there is no limit.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.phase {
            RunPhase::Running => self.timeout.and_then(|timeout| self.started.checked_add(timeout)),
            RunPhase::Terminating(until) | RunPhase::Killing(until) => Some(until),
        }
    }

    /// Handles what happened at `now` and returns what to do.
    pub(super) fn handle(&mut self, event: Event, now: Instant) -> Action {
        match event {
            Event::Died(deaths) => self.died(deaths, now),
            Event::DeadlinePassed => self.deadline_passed(now),
        }
    }

    fn died(&mut self, deaths: Vec<(Rank, Ending)>, now: Instant) -> Action {
        let failed = deaths.iter().any(|(_, ending)| !ending.is_success());
        for (rank, ending) in deaths {
            self.alive.remove(&rank);
            self.deaths.push(Death { rank, ending, phase: self.phase });
        }
        if self.alive.is_empty() {
            Action::Finish
        } else if failed && self.phase == RunPhase::Running {
            self.terminate(now)
        } else {
            Action::Wait
        }
    }

    fn deadline_passed(&mut self, now: Instant) -> Action {
        match self.phase {
            RunPhase::Running => {
                self.timed_out = true;
                self.terminate(now)
            }
            RunPhase::Terminating(_) => {
                self.phase = RunPhase::Killing(now + KILL_LIMIT);
                Action::Signal(Signal::KILL, self.living())
            }
            RunPhase::Killing(_) => Action::Finish,
        }
    }

    fn terminate(&mut self, now: Instant) -> Action {
        self.phase = RunPhase::Terminating(now.checked_add(self.grace).unwrap_or(now));
        Action::Signal(Signal::TERM, self.living())
    }

    fn living(&self) -> Vec<Rank> {
        self.alive.iter().copied().collect()
    }

    /// The result for the caller of spawn.
    pub(super) fn verdict(self) -> Result<(), SpawnError> {
        let gone = |death: &Death| Some(Stopped { rank: death.rank, by: death.stopped_by()? });
        let mut stopped: Vec<_> = self.deaths.iter().filter_map(gone).collect();
        stopped.extend(self.alive.iter().map(|&rank| Stopped { rank, by: StoppedBy::Nothing }));
        stopped.sort_by_key(|stopped| stopped.rank);
        let note = |death: &Death| death.ending.note.as_ref().map(|note| format!("process {}: {note}", death.rank));
        let notes = self.deaths.iter().filter_map(note).collect();
        let mut own: Vec<_> = self.deaths.iter().filter(|death| death.is_own_failure()).collect();
        if self.timed_out {
            let also_failed = own.into_iter().map(Death::failure).collect();
            return Err(SpawnError::TimedOut { after: self.timeout.unwrap_or_default(), also_failed, stopped });
        }
        if own.is_empty() {
            return Ok(());
        }
        let root = own.remove(root_of(&own)).failure();
        let also_failed = own.into_iter().map(Death::failure).collect();
        Err(SpawnError::Workers(Box::new(Report { root, also_failed, stopped, notes })))
    }
}

/// The index of the root cause among failures in order of death, of which there is at least one.
///
/// Usually it is the first death. But if that process and others recorded their errors, the earliest record counts
/// instead: a panic is recorded before its process unwinds and closes connections, which makes its peers fail, and one
/// of them may die first.
fn root_of(own: &[&Death]) -> usize {
    let recorded_at = |death: &&Death| death.record().and_then(|record| record.unix_nanos);
    if own.first().and_then(recorded_at).is_none() {
        return 0;
    }
    let stamped = own.iter().enumerate().filter_map(|(index, death)| Some((recorded_at(death)?, index)));
    stamped.min().map_or(0, |(_, index)| index)
}

impl Ending {
    /// Exit code 0 alone is not success: the process may have ended before its worker returned.
    fn is_success(&self) -> bool {
        self.status == Ok(Exit::Code(0)) && self.stage == Stage::Returned
    }
}

impl Death {
    fn is_own_failure(&self) -> bool {
        !self.ending.is_success() && self.stopped_by().is_none()
    }

    /// What ended it, if spawn did. A worker that recorded an error has failed on its own, whatever ended it then.
    fn stopped_by(&self) -> Option<StoppedBy> {
        if self.ending.is_success() || self.record().is_some() {
            return None;
        }
        match (self.phase, &self.ending.status) {
            (RunPhase::Running, _) => None,
            (RunPhase::Killing(_), Ok(Exit::Signal(signal))) if *signal == Signal::KILL.as_raw() => {
                Some(StoppedBy::Sigkill)
            }
            (_, Ok(Exit::Signal(signal))) if *signal != Signal::TERM.as_raw() => None,
            // It caught SIGTERM and exited with a code of its own, or did not catch it.
            _ => Some(StoppedBy::Sigterm),
        }
    }

    /// The record, unless something else ended the process later: a panic that it caught does not explain SIGKILL.
    fn record(&self) -> Option<&Recorded> {
        let record = self.ending.record.as_ref()?;
        match self.ending.status {
            Ok(Exit::Signal(signal)) if signal == Signal::ABORT.as_raw() => Some(record),
            Ok(Exit::Signal(_)) if self.phase == RunPhase::Running => None,
            Ok(Exit::Signal(signal)) if signal != Signal::TERM.as_raw() && signal != Signal::KILL.as_raw() => None,
            _ => Some(record),
        }
    }

    fn failure(&self) -> Failure {
        let rank = self.rank;
        if let Some(Recorded { message, kind, trace, .. }) = self.record().cloned() {
            return match kind {
                Kind::Error => Failure::Raised { rank, message, trace },
                Kind::Panic(location) => Failure::Panicked { rank, message, location, trace },
            };
        }
        match self.ending.status.clone() {
            Ok(Exit::Code(code)) => Failure::Exited { rank, code, stage: self.ending.stage },
            Ok(Exit::Signal(signal)) => Failure::Signalled { rank, signal },
            Ok(Exit::NotStarted(reason)) | Err(reason) => Failure::Lost { rank, reason },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(5);

    fn ending(status: Exit) -> Ending {
        Ending { status: Ok(status), stage: Stage::Reached, record: None, note: None }
    }

    fn success() -> Ending {
        Ending { stage: Stage::Returned, ..ending(Exit::Code(0)) }
    }

    fn raised(message: &str, unix_nanos: u64) -> Ending {
        let record = Recorded { message: message.into(), kind: Kind::Error, trace: None, unix_nanos: Some(unix_nanos) };
        Ending { record: Some(record), ..ending(Exit::Code(1)) }
    }

    fn signal(signal: Signal) -> Ending {
        ending(Exit::Signal(signal.as_raw()))
    }

    struct Run {
        state_machine: StateMachine,
        start: Instant,
    }

    fn run(nprocs: usize, timeout: Option<Duration>) -> Run {
        let start = Instant::now();
        Run { state_machine: StateMachine::new(WorldSize::new(nprocs).unwrap(), GRACE, timeout, start), start }
    }

    impl Run {
        fn died<const N: usize>(&mut self, at: u64, deaths: [(usize, Ending); N]) -> Action {
            let deaths = deaths.into_iter().map(|(rank, ending)| (Rank::new(rank), ending)).collect();
            self.state_machine.handle(Event::Died(deaths), self.start + Duration::from_secs(at))
        }

        fn deadline(&mut self, at: u64) -> Action {
            self.state_machine.handle(Event::DeadlinePassed, self.start + Duration::from_secs(at))
        }

        fn due(&self) -> Option<u64> {
            self.state_machine.deadline().map(|deadline| (deadline - self.start).as_secs())
        }

        fn report(self) -> Report {
            match self.state_machine.verdict() {
                Err(SpawnError::Workers(report)) => *report,
                other => panic!("{other:?}"),
            }
        }
    }

    fn ranks<const N: usize>(ranks: [usize; N]) -> Vec<Rank> {
        ranks.map(Rank::new).to_vec()
    }

    fn failed(failures: &[Failure]) -> Vec<usize> {
        failures.iter().map(|failure| failure.rank().get()).collect()
    }

    fn stopped(stopped: &[Stopped]) -> Vec<(usize, StoppedBy)> {
        stopped.iter().map(|stopped| (stopped.rank.get(), stopped.by)).collect()
    }

    #[test]
    fn waits_without_a_deadline_until_all_have_returned() {
        let mut run = run(2, None);
        assert_eq!(run.due(), None);
        assert_eq!(run.died(1, [(1, success())]), Action::Wait);
        assert_eq!(run.died(2, [(0, success())]), Action::Finish);
        assert!(run.state_machine.verdict().is_ok());
    }

    #[test]
    fn stops_the_others_at_the_first_failure_and_blames_it() {
        let mut run = run(3, None);
        assert_eq!(run.died(1, [(1, ending(Exit::Code(3)))]), Action::Signal(Signal::TERM, ranks([0, 2])));
        assert_eq!(run.due(), Some(6));
        assert_eq!(run.died(2, [(0, signal(Signal::TERM))]), Action::Wait);
        assert_eq!(run.died(2, [(2, signal(Signal::TERM))]), Action::Finish);
        let report = run.report();
        assert_eq!(report.root, Failure::Exited { rank: Rank::new(1), code: 3, stage: Stage::Reached });
        assert_eq!(stopped(&report.stopped), [(0, StoppedBy::Sigterm), (2, StoppedBy::Sigterm)]);
        assert!(report.also_failed.is_empty());
    }

    #[test]
    fn kills_workers_that_ignore_sigterm_after_the_grace() {
        let mut run = run(3, None);
        run.died(0, [(0, signal(Signal::SEGV))]);
        assert_eq!(run.died(1, [(1, signal(Signal::TERM))]), Action::Wait);
        assert_eq!(run.deadline(5), Action::Signal(Signal::KILL, ranks([2])));
        assert_eq!(run.due(), Some(15));
        assert_eq!(run.died(5, [(2, signal(Signal::KILL))]), Action::Finish);
        let report = run.report();
        assert_eq!(failed(&[report.root]), [0]);
        assert_eq!(stopped(&report.stopped), [(1, StoppedBy::Sigterm), (2, StoppedBy::Sigkill)]);
    }

    #[test]
    fn abandons_a_process_that_survives_sigkill_and_reports_it() {
        let mut run = run(2, None);
        run.died(0, [(0, ending(Exit::Code(1)))]);
        run.deadline(5);
        assert_eq!(run.deadline(15), Action::Finish);
        assert_eq!(stopped(&run.report().stopped), [(1, StoppedBy::Nothing)]);
    }

    #[test]
    fn blames_the_first_of_two_deaths_that_are_reported_together() {
        let mut run = run(3, None);
        let both = [(2, signal(Signal::KILL)), (0, ending(Exit::Code(1)))];
        assert_eq!(run.died(1, both), Action::Signal(Signal::TERM, ranks([1])));
        run.died(1, [(1, signal(Signal::TERM))]);
        let report = run.report();
        assert_eq!(failed(&[report.root]), [2]);
        assert_eq!(failed(&report.also_failed), [0]);
        assert_eq!(stopped(&report.stopped), [(1, StoppedBy::Sigterm)]);
    }

    #[test]
    fn blames_the_earliest_record_if_the_first_to_die_has_one() {
        let mut run = run(2, None);
        run.died(1, [(0, raised("peer closed the connection", 200))]);
        let unwinding = Ending { status: Ok(Exit::Signal(Signal::TERM.as_raw())), ..raised("the cause", 100) };
        run.died(2, [(1, unwinding)]);
        let report = run.report();
        assert!(matches!(report.root, Failure::Raised { ref message, .. } if message == "the cause"));
        assert_eq!(failed(&report.also_failed), [0]);
        assert!(report.stopped.is_empty());
    }

    #[test]
    fn blames_a_signal_that_came_first_over_any_record() {
        let mut run = run(2, None);
        run.died(1, [(1, signal(Signal::KILL)), (0, raised("peer closed the connection", 100))]);
        let report = run.report();
        assert_eq!(report.root, Failure::Signalled { rank: Rank::new(1), signal: 9 });
        assert_eq!(failed(&report.also_failed), [0]);
    }

    #[test]
    fn ignores_the_record_of_a_caught_panic_when_a_foreign_signal_kills() {
        let mut run = run(1, None);
        let killed = Ending { status: Ok(Exit::Signal(9)), ..raised("caught long ago", 1) };
        assert_eq!(run.died(1, [(0, killed)]), Action::Finish);
        assert_eq!(run.report().root, Failure::Signalled { rank: Rank::ZERO, signal: 9 });
    }

    #[test]
    fn counts_exit_code_0_before_the_worker_returned_as_a_failure() {
        for stage in [Stage::Started, Stage::Reached] {
            let mut run = run(2, None);
            let left = Ending { stage, ..ending(Exit::Code(0)) };
            assert_eq!(run.died(1, [(0, left)]), Action::Signal(Signal::TERM, ranks([1])));
            run.died(1, [(1, success())]);
            assert_eq!(run.report().root, Failure::Exited { rank: Rank::ZERO, code: 0, stage });
        }
    }

    #[test]
    fn counts_a_crash_during_the_stop_as_a_failure_of_its_own() {
        let mut run = run(3, None);
        run.died(1, [(0, ending(Exit::Code(1)))]);
        run.died(1, [(1, signal(Signal::SEGV))]);
        run.died(1, [(2, ending(Exit::Code(143)))]);
        let report = run.report();
        assert_eq!(failed(&report.also_failed), [1]);
        assert_eq!(stopped(&report.stopped), [(2, StoppedBy::Sigterm)]);
    }

    #[test]
    fn stops_all_workers_at_the_timeout_and_names_them() {
        let mut run = run(2, Some(Duration::from_secs(60)));
        assert_eq!(run.due(), Some(60));
        assert_eq!(run.died(1, [(0, success())]), Action::Wait);
        assert_eq!(run.deadline(60), Action::Signal(Signal::TERM, ranks([1])));
        assert_eq!(run.died(61, [(1, signal(Signal::TERM))]), Action::Finish);
        match run.state_machine.verdict() {
            Err(SpawnError::TimedOut { after, stopped: named, .. }) => {
                assert_eq!(after, Duration::from_secs(60));
                assert_eq!(stopped(&named), [(1, StoppedBy::Sigterm)]);
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn reports_the_exit_code_and_that_the_record_cannot_be_read() {
        let mut run = run(1, None);
        run.died(1, [(0, Ending { note: Some("not JSON".into()), ..ending(Exit::Code(1)) })]);
        let report = run.report();
        assert!(matches!(report.root, Failure::Exited { code: 1, .. }));
        assert_eq!(report.notes, ["process 0: not JSON"]);
    }
}
