//! The agent's state machine: a synchronous function of its state and one event.
//!
//! [`super::run`] starts, signals and waits for processes; this module decides the order of actions, so that every
//! order of deaths, signals and changes of other nodes is tested without a process. It does not read the time: an event
//! ends the grace period.
//!
//! ```text
//! joining ─ formed ─▶ running ─ all succeeded ─▶ clearing ─▶ at the barrier ─▶ over (0)
//!    ▲                  │ a death, a signal, news of other nodes
//!    │                  ▼
//!    └── clearing ◀─ stopping ──▶ clearing ──▶ over (1)
//!                       └─ all saved a snapshot ─▶ clearing ─▶ at the barrier ─▶ over (75)
//! ```

use lockstep_contract::snapshot_request::{SAVE_AND_END, SAVED};
use lockstep_process::Exit;

use crate::status::AgentPhase;

/// The agent's state.
#[derive(Debug)]
pub(super) struct StateMachine {
    state: AgentState,
    restarts_left: u32,
    /// A worker has ended after a snapshot, as a signal asked.
    saved: bool,
}

#[derive(Debug)]
enum AgentState {
    Joining,
    Running { alive: Vec<bool> },
    Stopping { alive: Vec<bool>, then: Then, killed: bool },
    Clearing { then: Then },
    AtBarrier,
    Over,
}

/// What follows once the workers are gone. A later variant overrides an earlier one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Then {
    Wait,
    Rejoin,
    /// The workers save a snapshot and end, because of this signal, or of one that another node received.
    Save(Option<i32>),
    /// Fail with this reason.
    Give(String),
    /// Fail because of this node's own workers.
    Fail,
    Obey(i32),
}

/// What the loop reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The nodes agreed on a round in which this node has `workers` workers.
    Formed { workers: usize },
    /// The nodes did not agree, or the rendezvous was interrupted, for the given reason.
    NotFormed(String),
    /// Only the first `started` workers could be started, for the given reason.
    NotStarted { started: usize, why: String },
    /// A worker ended.
    Died { worker: usize, exit: Exit },
    /// Another node failed, left or came, so that all nodes must agree again.
    Reform(String),
    /// The job has ended for all nodes, or cannot continue, for the given reason.
    Closed(String),
    /// This process received a signal that asks it to exit.
    Signalled(i32),
    /// This process received a signal that asks it to exit, and all workers can save a snapshot first.
    SaveAndEnd(i32),
    /// The grace period of the workers is over; a second time: SIGKILL has not ended them in time.
    GraceOver,
    /// All workers and the processes that they left behind are gone, and their output is written.
    Cleared,
    /// All nodes have finished, or the wait for them has ended.
    BarrierPassed,
    /// A node failed while this one waited at the exit barrier, for the given reason.
    BarrierBroken(String),
}

/// What the loop must do, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Agree with the other nodes on the members.
    Join,
    /// Start all workers.
    Start,
    /// Send every live worker this signal; the grace period begins.
    Stop(i32),
    /// Ask every live worker to save a snapshot and to end, because of this signal.
    AskToSave(i32),
    /// The grace period of workers that end on their own begins.
    AwaitEnd,
    /// Kill every live worker.
    Kill,
    /// Ask the other nodes to agree again.
    AskToReform(String),
    /// Tell the user that all workers will be restarted.
    Announce(Restart),
    /// Abandon these workers, which SIGKILL has not ended.
    Abandon(Vec<usize>),
    /// Wait until all processes of the workers are gone.
    Clear,
    /// Stop waiting for that.
    HurryUp,
    /// Wait until all nodes have finished.
    AwaitOthers,
    /// Announce to the other nodes that the job has failed for good.
    CloseJob,
    /// Announce to the other nodes that this one leaves.
    Leave,
    /// Exit.
    Finish(Outcome),
}

/// A restart of all workers of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Restart {
    /// The reason.
    pub(super) reason: String,
    /// Whether it counts against `--max-restarts`.
    pub(super) counted: bool,
    /// The number of counted restarts that are left.
    pub(super) left: u32,
}

/// How the agent ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// All workers of the job succeeded.
    Succeeded,
    /// The workers saved a snapshot and ended, as a signal asked.
    Saved,
    /// Workers of this node failed, and no restart is left.
    WorkersFailed,
    /// Another failure, with its reason.
    Failed(String),
    /// A signal asked it to exit.
    Signalled(i32),
}

/// The signal with which the agent stops workers, as in torchrun (signal(7)).
const SIGTERM: i32 = 15;

/// Returns true if this is the exit code of a worker that ended after a snapshot, as a signal asked.
pub(super) fn has_saved(exitcode: i32) -> bool {
    exitcode == i32::from(SAVED)
}

/// The signal that stops workers because of a signal to the agent.
fn stop_signal(signal: i32) -> i32 {
    if signal == SAVE_AND_END { SIGTERM } else { signal }
}

impl StateMachine {
    /// Allows `max_restarts` restarts after local failures.
    pub(super) fn new(max_restarts: u32) -> Self {
        StateMachine { state: AgentState::Joining, restarts_left: max_restarts, saved: false }
    }

    /// The number of counted restarts that are left.
    pub(super) fn restarts_left(&self) -> u32 {
        self.restarts_left
    }

    /// Returns true if the agent itself is stopping the workers, so that their deaths are expected. Workers that save a snapshot
    /// may still fail.
    pub(super) fn is_stopping(&self) -> bool {
        match &self.state {
            AgentState::Stopping { then, killed, .. } => *killed || !matches!(then, Then::Save(_)),
            _ => false,
        }
    }

    /// Returns true while workers run that nobody has asked to end.
    pub(super) fn is_running(&self) -> bool {
        matches!(self.state, AgentState::Running { .. })
    }

    /// Returns true if this signal, which comes while the workers save a snapshot and end, does not count as a second one: they save
    /// because of another node's signal, or of a request that sets no time limit, or have done so already.
    pub(super) fn takes_save_request(&self, signal: i32) -> bool {
        match &self.state {
            AgentState::Stopping { then: Then::Save(None), killed: false, .. }
            | AgentState::Clearing { then: Then::Save(None) } => true,
            AgentState::Stopping { then: Then::Save(Some(SAVE_AND_END)), killed: false, .. }
            | AgentState::Clearing { then: Then::Save(Some(SAVE_AND_END)) } => signal != SAVE_AND_END,
            _ => false,
        }
    }

    /// Returns true while the agent waits for other nodes.
    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.state, AgentState::Joining | AgentState::AtBarrier)
    }

    /// The current state, for the status.
    pub(super) fn doing(&self) -> AgentPhase {
        match self.state {
            AgentState::Joining => AgentPhase::Forming,
            AgentState::Running { .. } => AgentPhase::Running,
            AgentState::Stopping { .. } => AgentPhase::Stopping,
            AgentState::Clearing { .. } | AgentState::AtBarrier | AgentState::Over => AgentPhase::Ending,
        }
    }

    /// The first actions.
    pub(super) fn begin(&mut self) -> Vec<Action> {
        vec![Action::Join]
    }

    /// Handles one event.
    pub(super) fn handle(&mut self, event: Event) -> Vec<Action> {
        match event {
            Event::Formed { workers } => self.formed(workers),
            Event::NotFormed(why) | Event::BarrierBroken(why) => self.over(Outcome::Failed(why), None),
            Event::NotStarted { started, why } => self.not_started(started, why),
            Event::Died { worker, exit } => self.died(worker, &exit),
            Event::Reform(why) => self.reform(why),
            Event::Closed(why) => self.closed(why),
            Event::Signalled(signal) => self.signalled(signal),
            Event::SaveAndEnd(signal) => self.save_and_end(signal),
            Event::GraceOver => self.grace_over(),
            Event::Cleared => self.cleared(),
            Event::BarrierPassed if self.saved => self.over(Outcome::Saved, None),
            Event::BarrierPassed => self.over(Outcome::Succeeded, None),
        }
    }

    fn formed(&mut self, workers: usize) -> Vec<Action> {
        match self.state {
            AgentState::Joining => {
                self.state = AgentState::Running { alive: vec![true; workers] };
                vec![Action::Start]
            }
            _ => vec![],
        }
    }

    fn not_started(&mut self, started: usize, why: String) -> Vec<Action> {
        if let AgentState::Running { alive } = &mut self.state {
            alive.iter_mut().skip(started).for_each(|alive| *alive = false);
        }
        self.stop(SIGTERM, Then::Give(why))
    }

    fn died(&mut self, worker: usize, exit: &Exit) -> Vec<Action> {
        let running = self.is_running();
        let saving = matches!(self.state, AgentState::Stopping { then: Then::Save(_), .. });
        let (AgentState::Running { alive } | AgentState::Stopping { alive, .. }) = &mut self.state else {
            return vec![];
        };
        alive[worker] = false;
        let none_left = !alive.contains(&true);
        let saved = has_saved(exit.torch_code());
        self.saved |= saved && (running || saving);
        match (running, saving) {
            (true, _) if !saved && !exit.success() => self.failed(worker, exit),
            (_, true) if !saved && !exit.success() => self.failed_to_save(none_left),
            (true, _) if saved => self.await_end(none_left),
            (_, true) if saved && !none_left => vec![Action::AwaitEnd],
            _ if none_left => self.clear(),
            _ => vec![],
        }
    }

    /// Handles the first worker that ended after a snapshot: the others have saved too, or are about to.
    fn await_end(&mut self, none_left: bool) -> Vec<Action> {
        if let AgentState::Running { alive } = &mut self.state {
            self.state = AgentState::Stopping { alive: std::mem::take(alive), then: Then::Save(None), killed: false };
        }
        if none_left { self.clear() } else { vec![Action::AwaitEnd] }
    }

    /// Handles the failure of a worker that was asked to save: the job ends, so there is no restart.
    fn failed_to_save(&mut self, none_left: bool) -> Vec<Action> {
        let actions = self.stop(SIGTERM, Then::Fail);
        if none_left { self.clear() } else { actions }
    }

    /// Handles the failure of a worker.
    fn failed(&mut self, worker: usize, exit: &Exit) -> Vec<Action> {
        let reason = format!("local rank {worker} ended with {exit}");
        // A program that cannot be executed now will not be executable a moment later.
        if self.restarts_left == 0 || matches!(exit, Exit::NotStarted(_)) {
            return self.stop(SIGTERM, Then::Fail);
        }
        self.restarts_left -= 1;
        let announce = Action::Announce(Restart { reason: reason.clone(), counted: true, left: self.restarts_left });
        let mut actions = vec![announce, Action::AskToReform(reason)];
        actions.extend(self.stop(SIGTERM, Then::Rejoin));
        actions
    }

    fn reform(&mut self, reason: String) -> Vec<Action> {
        let mut actions = vec![Action::Announce(Restart { reason, counted: false, left: self.restarts_left })];
        match self.state {
            AgentState::Running { .. } => actions.extend(self.stop(SIGTERM, Then::Rejoin)),
            // This node's workers have saved all that there is.
            AgentState::AtBarrier if self.saved => return self.over(Outcome::Saved, Some(Action::Leave)),
            // The success of this node's workers was not announced yet: they run again, with the others.
            AgentState::AtBarrier => {
                self.state = AgentState::Joining;
                actions.push(Action::Join);
            }
            _ => return vec![],
        }
        actions
    }

    fn save_and_end(&mut self, signal: i32) -> Vec<Action> {
        let takes = self.takes_save_request(signal);
        match &mut self.state {
            AgentState::Running { alive } => {
                let alive = std::mem::take(alive);
                self.state = AgentState::Stopping { alive, then: Then::Save(Some(signal)), killed: false };
                vec![Action::AskToSave(signal)]
            }
            // The workers save already. A signal that orders the end limits the time from now on.
            AgentState::Stopping { then, .. } if takes => {
                *then = Then::Save(Some(signal));
                if signal == SAVE_AND_END { vec![] } else { vec![Action::AwaitEnd] }
            }
            AgentState::Clearing { then } if takes => {
                *then = Then::Save(Some(signal));
                vec![]
            }
            _ => self.signalled(signal),
        }
    }

    fn closed(&mut self, why: String) -> Vec<Action> {
        match self.state {
            AgentState::Joining => self.over(Outcome::Failed(why), None),
            // The barrier has its own events.
            AgentState::AtBarrier | AgentState::Over => vec![],
            _ => self.stop(SIGTERM, Then::Give(why)),
        }
    }

    fn signalled(&mut self, signal: i32) -> Vec<Action> {
        let ends = match &self.state {
            AgentState::Stopping { then, .. } => matches!(then, Then::Save(_) | Then::Obey(_)),
            AgentState::Clearing { then } => *then != Then::Rejoin,
            AgentState::AtBarrier | AgentState::Over => true,
            AgentState::Joining | AgentState::Running { .. } => false,
        };
        // It may come several times: timeout(1) signals its child and then its group.
        if signal == SAVE_AND_END && ends {
            return vec![];
        }
        match &mut self.state {
            AgentState::AtBarrier if self.saved => self.over(Outcome::Saved, Some(Action::Leave)),
            AgentState::Joining | AgentState::AtBarrier => self.over(Outcome::Signalled(signal), Some(Action::Leave)),
            AgentState::Stopping { then: Then::Obey(_), killed: killed @ false, .. } => {
                *killed = true;
                vec![Action::Kill]
            }
            AgentState::Clearing { then: Then::Obey(_) } => vec![Action::HurryUp],
            // The workers have saved and ended: what is left of them ends sooner, with the same outcome.
            AgentState::Clearing { then: Then::Save(before) } if self.saved => match before.replace(signal) {
                None | Some(SAVE_AND_END) => vec![],
                Some(_) => vec![Action::HurryUp],
            },
            AgentState::Over => vec![],
            // The others go on while this node's workers end.
            _ => [self.stop(stop_signal(signal), Then::Obey(signal)), vec![Action::Leave]].concat(),
        }
    }

    fn grace_over(&mut self) -> Vec<Action> {
        match &mut self.state {
            AgentState::Stopping { then, killed: killed @ false, .. } => {
                *killed = true;
                if let Then::Save(signal) = *then {
                    *then = signal.map_or(Then::Fail, Then::Obey);
                }
                vec![Action::Kill]
            }
            AgentState::Stopping { alive, then, .. } => {
                let stuck: Vec<usize> = (0..alive.len()).filter(|worker| alive[*worker]).collect();
                // They may still hold devices and ports, so that nothing can be started again on this node.
                if *then <= Then::Rejoin {
                    *then = Then::Give(format!("{} of this node's workers cannot be killed", stuck.len()));
                }
                let mut actions = vec![Action::Abandon(stuck)];
                actions.extend(self.clear());
                actions
            }
            _ => vec![],
        }
    }

    /// Stops the live workers, followed by `then`, unless a graver outcome is already pending.
    fn stop(&mut self, signal: i32, then: Then) -> Vec<Action> {
        match &mut self.state {
            AgentState::Running { alive } => {
                let alive = std::mem::take(alive);
                let none_left = !alive.contains(&true);
                self.state = AgentState::Stopping { alive, then, killed: false };
                if none_left { self.clear() } else { vec![Action::Stop(signal)] }
            }
            AgentState::Stopping { then: before, killed, .. } if then > *before => {
                // Workers that were only asked to save have not been stopped yet.
                let stops = matches!(then, Then::Obey(_)) || matches!(before, Then::Save(_));
                *before = then;
                if stops && !*killed { vec![Action::Stop(signal)] } else { vec![] }
            }
            AgentState::Clearing { then: before } if then > *before => {
                *before = then;
                vec![]
            }
            _ => vec![],
        }
    }

    fn clear(&mut self) -> Vec<Action> {
        let then = match &self.state {
            AgentState::Stopping { then, .. } => then.clone(),
            _ => Then::Wait,
        };
        self.state = AgentState::Clearing { then };
        vec![Action::Clear]
    }

    fn cleared(&mut self) -> Vec<Action> {
        let AgentState::Clearing { then } = &self.state else { return vec![] };
        match then.clone() {
            Then::Wait | Then::Save(_) => {
                self.state = AgentState::AtBarrier;
                vec![Action::AwaitOthers]
            }
            Then::Rejoin => {
                self.state = AgentState::Joining;
                vec![Action::Join]
            }
            Then::Fail => self.over(Outcome::WorkersFailed, Some(Action::CloseJob)),
            Then::Give(why) => self.over(Outcome::Failed(why), Some(Action::CloseJob)),
            Then::Obey(signal) => self.over(Outcome::Signalled(signal), Some(Action::Leave)),
        }
    }

    fn over(&mut self, outcome: Outcome, announcement: Option<Action>) -> Vec<Action> {
        if matches!(self.state, AgentState::Over) {
            return vec![];
        }
        self.state = AgentState::Over;
        announcement.into_iter().chain([Action::Finish(outcome)]).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A state machine whose `workers` workers run.
    fn running(workers: usize, max_restarts: u32) -> StateMachine {
        let mut machine = StateMachine::new(max_restarts);
        assert_eq!(machine.begin(), [Action::Join]);
        assert_eq!(machine.handle(Event::Formed { workers }), [Action::Start]);
        machine
    }

    fn died(worker: usize, exit: Exit) -> Event {
        Event::Died { worker, exit }
    }

    #[test]
    fn succeeds_when_all_workers_and_all_nodes_have() {
        let mut machine = running(2, 0);
        assert_eq!(machine.handle(died(1, Exit::Code(0))), []);
        assert_eq!(machine.handle(died(0, Exit::Code(0))), [Action::Clear]);
        assert_eq!(machine.handle(Event::Cleared), [Action::AwaitOthers]);
        assert_eq!(machine.handle(Event::BarrierPassed), [Action::Finish(Outcome::Succeeded)]);
    }

    #[test]
    fn a_death_stops_the_peers_and_restarts_all_workers_as_often_as_allowed() {
        let mut machine = running(2, 1);
        let actions = machine.handle(died(1, Exit::Signal(9)));
        let reason = "local rank 1 ended with SIGKILL".to_owned();
        let restart = Restart { reason: reason.clone(), counted: true, left: 0 };
        assert_eq!(actions, [Action::Announce(restart), Action::AskToReform(reason), Action::Stop(SIGTERM)]);
        assert_eq!(machine.handle(died(0, Exit::Signal(15))), [Action::Clear]);
        assert_eq!(machine.handle(Event::Cleared), [Action::Join]);
        assert_eq!(machine.handle(Event::Formed { workers: 2 }), [Action::Start]);
        assert_eq!(machine.handle(died(0, Exit::Code(3))), [Action::Stop(SIGTERM)]);
        assert_eq!(machine.handle(died(1, Exit::Code(1))), [Action::Clear]);
        assert_eq!(machine.handle(Event::Cleared), [Action::CloseJob, Action::Finish(Outcome::WorkersFailed)]);
    }

    #[test]
    fn workers_that_ignore_the_signal_are_killed_when_the_grace_is_over() {
        let mut machine = running(2, 0);
        machine.handle(died(0, Exit::Code(1)));
        assert_eq!(machine.handle(Event::GraceOver), [Action::Kill]);
        assert_eq!(machine.handle(died(1, Exit::Signal(9))), [Action::Clear]);
        assert_eq!(machine.handle(Event::GraceOver), []);
    }

    #[test]
    fn workers_that_sigkill_does_not_end_are_given_up() {
        for (max_restarts, end) in
            [(0, Outcome::WorkersFailed), (1, Outcome::Failed("2 of this node's workers cannot be killed".into()))]
        {
            let mut machine = running(4, max_restarts);
            machine.handle(died(0, Exit::Code(1)));
            assert_eq!(machine.handle(Event::GraceOver), [Action::Kill]);
            machine.handle(died(2, Exit::Signal(9)));
            assert_eq!(machine.handle(Event::GraceOver), [Action::Abandon(vec![1, 3]), Action::Clear]);
            assert_eq!(machine.handle(died(3, Exit::Signal(9))), []);
            assert_eq!(machine.handle(Event::Cleared), [Action::CloseJob, Action::Finish(end)]);
        }
    }

    #[test]
    fn a_signal_is_forwarded_and_a_second_one_kills() {
        let mut machine = running(1, 3);
        assert_eq!(machine.handle(Event::Signalled(2)), [Action::Stop(2), Action::Leave]);
        assert_eq!(machine.handle(Event::Signalled(2)), [Action::Kill]);
        assert_eq!(machine.handle(Event::Signalled(2)), [Action::Leave]);
        assert_eq!(machine.handle(died(0, Exit::Signal(9))), [Action::Clear]);
        assert_eq!(machine.handle(Event::Cleared), [Action::Leave, Action::Finish(Outcome::Signalled(2))]);
    }

    #[test]
    fn a_second_signal_does_not_wait_for_leftover_processes() {
        let mut machine = running(1, 0);
        assert_eq!(machine.handle(died(0, Exit::Code(0))), [Action::Clear]);
        assert_eq!(machine.handle(Event::Signalled(2)), [Action::Leave]);
        assert_eq!(machine.handle(Event::Signalled(2)), [Action::HurryUp]);
        assert_eq!(machine.handle(Event::Cleared), [Action::Leave, Action::Finish(Outcome::Signalled(2))]);
    }

    #[test]
    fn a_signal_during_a_restart_ends_the_job_instead() {
        let mut machine = running(2, 3);
        machine.handle(died(0, Exit::Code(1)));
        assert_eq!(machine.handle(Event::Signalled(15)), [Action::Stop(15), Action::Leave]);
        machine.handle(died(1, Exit::Signal(15)));
        assert_eq!(machine.handle(Event::Cleared), [Action::Leave, Action::Finish(Outcome::Signalled(15))]);
    }

    const ENDED: Exit = Exit::Code(75);

    #[test]
    fn a_signal_to_save_ends_the_job_once_all_workers_have() {
        let mut machine = running(2, 3);
        assert_eq!(machine.handle(Event::SaveAndEnd(15)), [Action::AskToSave(15)]);
        assert!(!machine.is_stopping());
        assert_eq!(machine.handle(died(1, ENDED)), [Action::AwaitEnd]);
        assert_eq!(machine.handle(died(0, ENDED)), [Action::Clear]);
        assert_eq!(machine.handle(Event::Cleared), [Action::AwaitOthers]);
        assert_eq!(machine.handle(Event::BarrierPassed), [Action::Finish(Outcome::Saved)]);
    }

    #[test]
    fn workers_that_save_because_of_another_nodes_signal_end_the_job_without_a_restart() {
        let mut machine = running(2, 3);
        assert_eq!(machine.handle(died(0, ENDED)), [Action::AwaitEnd]);
        assert_eq!(machine.handle(Event::Reform("node b leaves".into())), []);
        assert_eq!(machine.handle(died(1, ENDED)), [Action::Clear]);
        assert_eq!(machine.handle(Event::Cleared), [Action::AwaitOthers]);
        let left = [Action::Leave, Action::Finish(Outcome::Saved)];
        assert_eq!(machine.handle(Event::Reform("node b restarts".into())), left);
    }

    #[test]
    fn a_training_that_is_done_before_it_saves_has_succeeded() {
        let mut machine = running(1, 0);
        machine.handle(Event::SaveAndEnd(12));
        assert_eq!(machine.handle(died(0, Exit::Code(0))), [Action::Clear]);
        assert_eq!(machine.handle(Event::Cleared), [Action::AwaitOthers]);
        assert_eq!(machine.handle(Event::BarrierPassed), [Action::Finish(Outcome::Succeeded)]);
    }

    #[test]
    fn a_worker_that_fails_while_it_saves_ends_the_job_without_a_restart() {
        let mut machine = running(2, 3);
        machine.handle(Event::SaveAndEnd(15));
        assert_eq!(machine.handle(died(0, Exit::Signal(11))), [Action::Stop(SIGTERM)]);
        assert!(machine.is_stopping());
        assert_eq!(machine.handle(died(1, Exit::Signal(15))), [Action::Clear]);
        assert_eq!(machine.handle(Event::Cleared), [Action::CloseJob, Action::Finish(Outcome::WorkersFailed)]);
    }

    #[test]
    fn the_grace_of_workers_that_save_ends_too() {
        for (event, outcome) in
            [(Event::SaveAndEnd(15), Outcome::Signalled(15)), (died(1, ENDED), Outcome::WorkersFailed)]
        {
            let mut machine = running(2, 3);
            machine.handle(event);
            assert_eq!(machine.handle(Event::GraceOver), [Action::Kill]);
            machine.handle(died(1, Exit::Signal(9)));
            assert_eq!(machine.handle(died(0, Exit::Signal(9))), [Action::Clear]);
            let actions = machine.handle(Event::Cleared);
            assert_eq!(actions.last(), Some(&Action::Finish(outcome)));
        }
    }

    #[test]
    fn a_second_signal_does_not_wait_for_a_snapshot() {
        let mut machine = running(1, 3);
        machine.handle(Event::SaveAndEnd(12));
        assert_eq!(
            machine.handle(Event::Signalled(12)),
            [],
            "the same request again does not count as a second signal"
        );
        assert_eq!(machine.handle(Event::Signalled(15)), [Action::Stop(15), Action::Leave]);
        assert_eq!(machine.handle(Event::Signalled(15)), [Action::Kill]);
        machine.handle(died(0, Exit::Signal(9)));
        assert_eq!(machine.handle(Event::Cleared), [Action::Leave, Action::Finish(Outcome::Signalled(15))]);
    }

    /// A scheduler signals all processes of a job: a worker may have saved before this agent handles the signal.
    #[test]
    fn a_signal_to_save_that_comes_after_the_first_worker_has_saved_is_no_second_signal() {
        let mut machine = running(3, 3);
        assert_eq!(machine.handle(died(1, ENDED)), [Action::AwaitEnd]);
        assert!(machine.takes_save_request(SIGTERM) && machine.takes_save_request(SAVE_AND_END));
        assert_eq!(machine.handle(Event::SaveAndEnd(SIGTERM)), [Action::AwaitEnd]);
        assert!(!machine.takes_save_request(SIGTERM));
        assert_eq!(machine.handle(died(0, ENDED)), [Action::AwaitEnd]);
        assert_eq!(machine.handle(died(2, ENDED)), [Action::Clear]);
        assert_eq!(machine.handle(Event::Cleared), [Action::AwaitOthers]);
        assert_eq!(machine.handle(Event::BarrierPassed), [Action::Finish(Outcome::Saved)]);
    }

    #[test]
    fn a_signal_to_save_that_comes_after_all_have_saved_is_no_second_signal() {
        let mut machine = running(2, 3);
        assert_eq!(machine.handle(died(1, ENDED)), [Action::AwaitEnd]);
        assert_eq!(machine.handle(died(0, ENDED)), [Action::Clear]);
        assert!(machine.takes_save_request(SIGTERM));
        assert_eq!(machine.handle(Event::SaveAndEnd(SIGTERM)), []);
        assert!(!machine.takes_save_request(SIGTERM));
        assert_eq!(machine.handle(Event::Signalled(SIGTERM)), [Action::HurryUp], "they have saved all the same");
        assert_eq!(machine.handle(Event::Cleared), [Action::AwaitOthers]);
        assert_eq!(machine.handle(Event::BarrierPassed), [Action::Finish(Outcome::Saved)]);
    }

    #[test]
    fn the_signal_at_the_time_limit_that_comes_after_all_have_saved_changes_nothing() {
        let mut machine = running(1, 3);
        assert_eq!(machine.handle(Event::SaveAndEnd(SAVE_AND_END)), [Action::AskToSave(SAVE_AND_END)]);
        assert_eq!(machine.handle(died(0, ENDED)), [Action::Clear]);
        assert!(machine.takes_save_request(SIGTERM));
        assert_eq!(machine.handle(Event::Signalled(SIGTERM)), []);
        assert_eq!(machine.handle(Event::Cleared), [Action::AwaitOthers]);
        assert_eq!(machine.handle(Event::Signalled(SIGTERM)), [Action::Leave, Action::Finish(Outcome::Saved)]);
    }

    #[test]
    fn the_signal_at_the_time_limit_limits_a_save_that_was_asked_for_before_and_the_next_one_ends_it() {
        let mut machine = running(1, 3);
        assert_eq!(machine.handle(Event::SaveAndEnd(SAVE_AND_END)), [Action::AskToSave(SAVE_AND_END)]);
        assert!(!machine.takes_save_request(SAVE_AND_END) && machine.takes_save_request(SIGTERM));
        assert_eq!(machine.handle(Event::SaveAndEnd(SIGTERM)), [Action::AwaitEnd]);
        assert_eq!(machine.handle(Event::SaveAndEnd(SIGTERM)), [Action::Stop(SIGTERM), Action::Leave]);
        assert_eq!(machine.handle(Event::SaveAndEnd(SIGTERM)), [Action::Kill]);
    }

    #[test]
    fn the_survivors_of_a_failure_are_stopped_even_where_the_signal_asks_to_save() {
        let mut machine = running(2, 0);
        assert_eq!(machine.handle(died(0, Exit::Code(1))), [Action::Stop(SIGTERM)]);
        assert!(!machine.takes_save_request(SIGTERM));
        assert_eq!(machine.handle(Event::SaveAndEnd(SIGTERM)), [Action::Stop(SIGTERM), Action::Leave]);
        machine.handle(died(1, Exit::Signal(15)));
        assert_eq!(machine.handle(Event::Cleared), [Action::Leave, Action::Finish(Outcome::Signalled(SIGTERM))]);
    }

    #[test]
    fn workers_that_cannot_save_are_stopped_by_sigterm() {
        let mut machine = running(1, 3);
        assert_eq!(machine.handle(Event::Signalled(SAVE_AND_END)), [Action::Stop(SIGTERM), Action::Leave]);
        machine.handle(died(0, Exit::Signal(15)));
        assert_eq!(machine.handle(Event::Cleared), [Action::Leave, Action::Finish(Outcome::Signalled(12))]);
    }

    #[test]
    fn a_change_of_other_nodes_restarts_the_workers_without_counting() {
        let mut machine = running(1, 0);
        let restart = Restart { reason: "node b is lost".into(), counted: false, left: 0 };
        let actions = machine.handle(Event::Reform("node b is lost".into()));
        assert_eq!(actions, [Action::Announce(restart), Action::Stop(SIGTERM)]);
        machine.handle(died(0, Exit::Code(1)));
        assert_eq!(machine.handle(Event::Cleared), [Action::Join]);
    }

    #[test]
    fn a_change_between_the_last_success_and_the_barrier_makes_all_workers_run_again() {
        let mut machine = running(1, 0);
        machine.handle(died(0, Exit::Code(0)));
        machine.handle(Event::Cleared);
        let restart = Restart { reason: "node b restarts".into(), counted: false, left: 0 };
        let actions = machine.handle(Event::Reform("node b restarts".into()));
        assert_eq!(actions, [Action::Announce(restart), Action::Join]);
        assert_eq!(machine.handle(Event::Reform("announced twice".into())), []);
        assert_eq!(machine.handle(Event::Formed { workers: 1 }), [Action::Start]);
    }

    #[test]
    fn a_job_that_another_node_closed_ends_here_too_with_its_reason() {
        let mut machine = running(1, 3);
        assert_eq!(machine.handle(Event::Closed("node b failed".into())), [Action::Stop(SIGTERM)]);
        machine.handle(died(0, Exit::Signal(15)));
        let over = Action::Finish(Outcome::Failed("node b failed".into()));
        assert_eq!(machine.handle(Event::Cleared), [Action::CloseJob, over]);
    }

    #[test]
    fn a_program_that_cannot_be_executed_is_not_retried() {
        let mut machine = running(1, 3);
        assert_eq!(machine.handle(died(0, Exit::NotStarted("no such file".into()))), [Action::Clear]);
        assert_eq!(machine.handle(Event::Cleared), [Action::CloseJob, Action::Finish(Outcome::WorkersFailed)]);
        let mut machine = running(2, 3);
        let why = || "too many processes".to_owned();
        assert_eq!(machine.handle(Event::NotStarted { started: 1, why: why() }), [Action::Stop(SIGTERM)]);
        assert_eq!(machine.handle(died(0, Exit::Signal(15))), [Action::Clear]);
        assert_eq!(machine.handle(Event::Cleared), [Action::CloseJob, Action::Finish(Outcome::Failed(why()))]);
    }

    /// A simulated world: it answers actions, and generates other events at any time.
    struct World {
        machine: StateMachine,
        alive: Vec<usize>,
        clearing: bool,
        finished: Option<Outcome>,
    }

    impl World {
        fn feed(&mut self, event: Event) {
            for action in self.machine.handle(event) {
                assert_eq!(self.finished, None, "{action:?} after the end");
                match action {
                    Action::Start => {
                        assert!(self.alive.is_empty(), "workers are started while others live");
                        self.alive = vec![0, 1, 2];
                    }
                    Action::Abandon(stuck) => self.alive.retain(|worker| !stuck.contains(worker)),
                    Action::Clear => {
                        assert!(self.alive.is_empty(), "cleared while {:?} live", self.alive);
                        self.clearing = true;
                    }
                    Action::Finish(outcome) => {
                        assert!(self.alive.is_empty(), "over while {:?} live", self.alive);
                        self.finished = Some(outcome);
                    }
                    _ => {}
                }
            }
        }

        fn kill_one(&mut self, worker: usize, exit: Exit) {
            if let Some(at) = self.alive.iter().position(|alive| *alive == worker) {
                self.alive.remove(at);
                self.feed(died(worker, exit));
            }
        }

        /// The next event if nothing else happens.
        fn settle(&mut self) {
            for _ in 0..100 {
                if self.finished.is_some() {
                    return;
                }
                if std::mem::take(&mut self.clearing) {
                    self.feed(Event::Cleared);
                }
                self.feed(Event::Formed { workers: 3 });
                (0..3).for_each(|worker| self.kill_one(worker, Exit::Code(0)));
                if std::mem::take(&mut self.clearing) {
                    self.feed(Event::Cleared);
                }
                self.feed(Event::BarrierPassed);
            }
        }
    }

    fn any_event() -> impl Strategy<Value = u8> {
        0..14_u8
    }

    proptest! {
        #[test]
        fn never_starts_workers_while_others_live_and_always_ends_once(
            events in proptest::collection::vec(any_event(), 0..40),
            max_restarts in 0..3_u32,
        ) {
            let mut machine = StateMachine::new(max_restarts);
            machine.begin();
            let mut world = World { machine, alive: vec![], clearing: false, finished: None };
            for event in events {
                match event {
                    0..=2 => world.kill_one(event.into(), Exit::Code(0)),
                    3..=5 => world.kill_one(usize::from(event) - 3, Exit::Signal(9)),
                    6 => world.feed(Event::Reform("news".into())),
                    7 => world.feed(Event::Closed("closed".into())),
                    8 => world.feed(Event::Signalled(15)),
                    9 => world.feed(Event::GraceOver),
                    12 => world.feed(Event::SaveAndEnd(15)),
                    13 => world.kill_one(0, ENDED),
                    10 if std::mem::take(&mut world.clearing) => world.feed(Event::Cleared),
                    _ => world.feed(Event::Formed { workers: 3 }),
                }
            }
            world.settle();
            prop_assert!(world.finished.is_some(), "no end: {:?}", world.machine);
        }
    }
}
