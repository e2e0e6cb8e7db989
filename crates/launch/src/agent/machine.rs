//! What the agent does when something happens: a synchronous function of its state and one event.
//!
//! Starting, signalling and waiting are done by [`super::run`]; here is only the order of things, so that every order in
//! which deaths, signals and news of other nodes can come is tested without a process. Time is not looked at: the grace
//! period ends by an event of its own.
//!
//! ```text
//! joining ─ formed ─▶ running ─ all succeeded ─▶ clearing ─▶ at the barrier ─▶ over (0)
//!    ▲                  │ a death, a signal, news of other nodes
//!    │                  ▼
//!    └── clearing ◀─ stopping ──▶ clearing ──▶ over (1)
//! ```

use lockstep_process::Exit;

use crate::status::Phase as Doing;

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The nodes agreed, and this node takes part with so many workers.
    Formed { workers: usize },
    /// The nodes did not agree, or an end was made to it, as the text says.
    NotFormed(String),
    /// Only the first `started` workers could be started, as the text says.
    NotStarted { started: usize, why: String },
    /// A worker ended.
    Died { worker: usize, exit: Exit },
    /// Another node failed, left or came, so that all must agree anew.
    Reform(String),
    /// The job is over for all nodes, or cannot go on, as the text says.
    Closed(String),
    /// This process was sent a signal that asks it to end.
    Signalled(i32),
    /// The time that workers have to end by themselves is over.
    GraceOver,
    /// Every worker is gone with all that it had left behind, and its output is written.
    Cleared,
    /// All nodes have finished, or waiting for them was given up.
    BarrierPassed,
    /// A node that was waited for at the end failed, as the text says.
    BarrierBroken(String),
}

/// What to do next, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Agree with the other nodes on who takes part.
    Join,
    /// Start all workers.
    Start,
    /// Send every live worker this signal; the grace period begins.
    Stop(i32),
    /// Kill every live worker.
    Kill,
    /// Tell the other nodes to agree anew.
    AskToReform(String),
    /// Tell the person at the terminal that all workers will be started anew.
    Announce(Restart),
    /// Wait until nothing of the workers is left.
    Clear,
    /// Wait for that no longer.
    HurryUp,
    /// Wait until all nodes have finished.
    AwaitOthers,
    /// Tell the other nodes that the job has failed for good.
    CloseJob,
    /// Tell the other nodes that this one leaves.
    Leave,
    /// End.
    Finish(Outcome),
}

/// All workers of this node are started anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Restart {
    /// Why.
    pub(super) reason: String,
    /// Whether it counts against `--max-restarts`.
    pub(super) counted: bool,
    /// How many are left that count.
    pub(super) left: u32,
}

/// How the agent ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// All workers of the job succeeded.
    Succeeded,
    /// Workers of this node failed, and no restart is left.
    WorkersFailed,
    /// Something else, as the text says.
    Failed(String),
    /// A signal asked for it.
    Signalled(i32),
}

/// The agent's state.
#[derive(Debug)]
pub(super) struct Machine {
    phase: Phase,
    restarts_left: u32,
}

#[derive(Debug)]
enum Phase {
    Joining,
    Running { alive: Vec<bool> },
    Stopping { alive: Vec<bool>, then: Then, killed: bool },
    Clearing { then: Then },
    AtBarrier,
    Over,
}

/// What follows once the workers are gone. The later overrules the earlier, never the other way round.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Then {
    Wait,
    Rejoin,
    /// Fail for the reason that the text gives.
    Give(String),
    /// Fail because of this node's own workers.
    Fail,
    Obey(i32),
}

/// What ends workers when the agent itself wants it, as torchrun's does (signal(7)).
const SIGTERM: i32 = 15;

impl Machine {
    /// An agent that may start its workers anew so often after a failure of its own.
    pub(super) fn new(max_restarts: u32) -> Self {
        Machine { phase: Phase::Joining, restarts_left: max_restarts }
    }

    /// How many restarts are left that count.
    pub(super) fn restarts_left(&self) -> u32 {
        self.restarts_left
    }

    /// Whether deaths are the agent's own doing from now on.
    pub(super) fn is_stopping(&self) -> bool {
        matches!(self.phase, Phase::Stopping { .. })
    }

    /// Whether other nodes are what is waited for.
    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.phase, Phase::Joining | Phase::AtBarrier)
    }

    /// What is being done, for the status.
    pub(super) fn doing(&self) -> Doing {
        match self.phase {
            Phase::Joining => Doing::Forming,
            Phase::Running { .. } => Doing::Running,
            Phase::Stopping { .. } => Doing::Stopping,
            Phase::Clearing { .. } | Phase::AtBarrier | Phase::Over => Doing::Ending,
        }
    }

    /// The first things to do.
    pub(super) fn begin(&mut self) -> Vec<Action> {
        vec![Action::Join]
    }

    /// Takes in one event.
    pub(super) fn handle(&mut self, event: Event) -> Vec<Action> {
        match event {
            Event::Formed { workers } => self.formed(workers),
            Event::NotFormed(why) | Event::BarrierBroken(why) => self.over(Outcome::Failed(why), None),
            Event::NotStarted { started, why } => self.not_started(started, why),
            Event::Died { worker, exit } => self.died(worker, &exit),
            Event::Reform(why) => self.reform(why),
            Event::Closed(why) => self.closed(why),
            Event::Signalled(signal) => self.signalled(signal),
            Event::GraceOver => self.grace_over(),
            Event::Cleared => self.cleared(),
            Event::BarrierPassed => self.over(Outcome::Succeeded, None),
        }
    }

    fn formed(&mut self, workers: usize) -> Vec<Action> {
        match self.phase {
            Phase::Joining => {
                self.phase = Phase::Running { alive: vec![true; workers] };
                vec![Action::Start]
            }
            _ => vec![],
        }
    }

    fn not_started(&mut self, started: usize, why: String) -> Vec<Action> {
        if let Phase::Running { alive } = &mut self.phase {
            alive.iter_mut().skip(started).for_each(|alive| *alive = false);
        }
        self.stop(SIGTERM, Then::Give(why))
    }

    fn died(&mut self, worker: usize, exit: &Exit) -> Vec<Action> {
        let running = matches!(self.phase, Phase::Running { .. });
        let (Phase::Running { alive } | Phase::Stopping { alive, .. }) = &mut self.phase else { return vec![] };
        alive[worker] = false;
        let none_left = !alive.contains(&true);
        match (running, exit.success()) {
            (true, false) => self.failed(worker, exit),
            (_, _) if none_left => self.clear(),
            _ => vec![],
        }
    }

    /// A worker of this node failed by itself.
    fn failed(&mut self, worker: usize, exit: &Exit) -> Vec<Action> {
        let reason = format!("local rank {worker} ended with {exit}");
        // What cannot be executed now cannot be executed a moment later.
        if self.restarts_left == 0 || matches!(exit, Exit::NotStarted(_)) {
            return self.stop(SIGTERM, Then::Fail);
        }
        self.restarts_left -= 1;
        let told = Action::Announce(Restart { reason: reason.clone(), counted: true, left: self.restarts_left });
        let mut actions = vec![told, Action::AskToReform(reason)];
        actions.extend(self.stop(SIGTERM, Then::Rejoin));
        actions
    }

    fn reform(&mut self, reason: String) -> Vec<Action> {
        let mut actions = vec![Action::Announce(Restart { reason, counted: false, left: self.restarts_left })];
        match self.phase {
            Phase::Running { .. } => actions.extend(self.stop(SIGTERM, Then::Rejoin)),
            // Before this node could tell that its workers have succeeded: they run once more, with the others'.
            Phase::AtBarrier => {
                self.phase = Phase::Joining;
                actions.push(Action::Join);
            }
            _ => return vec![],
        }
        actions
    }

    fn closed(&mut self, why: String) -> Vec<Action> {
        match self.phase {
            Phase::Joining => self.over(Outcome::Failed(why), None),
            // The barrier has news of its own.
            Phase::AtBarrier | Phase::Over => vec![],
            _ => self.stop(SIGTERM, Then::Give(why)),
        }
    }

    fn signalled(&mut self, signal: i32) -> Vec<Action> {
        match &mut self.phase {
            Phase::Joining | Phase::AtBarrier => self.over(Outcome::Signalled(signal), Some(Action::Leave)),
            Phase::Stopping { then: Then::Obey(_), killed: killed @ false, .. } => {
                *killed = true;
                vec![Action::Kill]
            }
            Phase::Clearing { then: Then::Obey(_) } => vec![Action::HurryUp],
            Phase::Over => vec![],
            _ => self.stop(signal, Then::Obey(signal)),
        }
    }

    fn grace_over(&mut self) -> Vec<Action> {
        match &mut self.phase {
            Phase::Stopping { killed: killed @ false, .. } => {
                *killed = true;
                vec![Action::Kill]
            }
            _ => vec![],
        }
    }

    /// Ends the workers that live, with `then` to follow, unless something graver was to follow already.
    fn stop(&mut self, signal: i32, then: Then) -> Vec<Action> {
        match &mut self.phase {
            Phase::Running { alive } => {
                let alive = std::mem::take(alive);
                let none_left = !alive.contains(&true);
                self.phase = Phase::Stopping { alive, then, killed: false };
                if none_left { self.clear() } else { vec![Action::Stop(signal)] }
            }
            Phase::Stopping { then: before, killed, .. } if then > *before => {
                let obeys = matches!(then, Then::Obey(_));
                *before = then;
                if obeys && !*killed { vec![Action::Stop(signal)] } else { vec![] }
            }
            Phase::Clearing { then: before } if then > *before => {
                *before = then;
                vec![]
            }
            _ => vec![],
        }
    }

    fn clear(&mut self) -> Vec<Action> {
        let then = match &self.phase {
            Phase::Stopping { then, .. } => then.clone(),
            _ => Then::Wait,
        };
        self.phase = Phase::Clearing { then };
        vec![Action::Clear]
    }

    fn cleared(&mut self) -> Vec<Action> {
        let Phase::Clearing { then } = &self.phase else { return vec![] };
        match then.clone() {
            Then::Wait => {
                self.phase = Phase::AtBarrier;
                vec![Action::AwaitOthers]
            }
            Then::Rejoin => {
                self.phase = Phase::Joining;
                vec![Action::Join]
            }
            Then::Fail => self.over(Outcome::WorkersFailed, Some(Action::CloseJob)),
            Then::Give(why) => self.over(Outcome::Failed(why), Some(Action::CloseJob)),
            Then::Obey(signal) => self.over(Outcome::Signalled(signal), Some(Action::Leave)),
        }
    }

    fn over(&mut self, outcome: Outcome, farewell: Option<Action>) -> Vec<Action> {
        if matches!(self.phase, Phase::Over) {
            return vec![];
        }
        self.phase = Phase::Over;
        farewell.into_iter().chain([Action::Finish(outcome)]).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A machine whose `workers` workers run.
    fn running(workers: usize, max_restarts: u32) -> Machine {
        let mut machine = Machine::new(max_restarts);
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
    fn a_death_stops_the_peers_and_starts_all_anew_as_often_as_allowed() {
        let mut machine = running(2, 1);
        let actions = machine.handle(died(1, Exit::Signal(9)));
        let reason = "local rank 1 ended with SIGKILL".to_owned();
        let told = Restart { reason: reason.clone(), counted: true, left: 0 };
        assert_eq!(actions, [Action::Announce(told), Action::AskToReform(reason), Action::Stop(SIGTERM)]);
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
        assert_eq!(machine.handle(Event::GraceOver), []);
        assert_eq!(machine.handle(died(1, Exit::Signal(9))), [Action::Clear]);
    }

    #[test]
    fn a_signal_is_passed_on_as_it_is_and_a_second_one_kills() {
        let mut machine = running(1, 3);
        assert_eq!(machine.handle(Event::Signalled(2)), [Action::Stop(2)]);
        assert_eq!(machine.handle(Event::Signalled(2)), [Action::Kill]);
        assert_eq!(machine.handle(Event::Signalled(2)), []);
        assert_eq!(machine.handle(died(0, Exit::Signal(9))), [Action::Clear]);
        assert_eq!(machine.handle(Event::Cleared), [Action::Leave, Action::Finish(Outcome::Signalled(2))]);
    }

    #[test]
    fn a_second_signal_does_not_wait_for_what_workers_left() {
        let mut machine = running(1, 0);
        assert_eq!(machine.handle(died(0, Exit::Code(0))), [Action::Clear]);
        assert_eq!(machine.handle(Event::Signalled(2)), []);
        assert_eq!(machine.handle(Event::Signalled(2)), [Action::HurryUp]);
        assert_eq!(machine.handle(Event::Cleared), [Action::Leave, Action::Finish(Outcome::Signalled(2))]);
    }

    #[test]
    fn a_signal_during_a_restart_ends_the_job_instead() {
        let mut machine = running(2, 3);
        machine.handle(died(0, Exit::Code(1)));
        assert_eq!(machine.handle(Event::Signalled(15)), [Action::Stop(15)]);
        machine.handle(died(1, Exit::Signal(15)));
        assert_eq!(machine.handle(Event::Cleared), [Action::Leave, Action::Finish(Outcome::Signalled(15))]);
    }

    #[test]
    fn news_of_other_nodes_restarts_the_workers_without_counting() {
        let mut machine = running(1, 0);
        let told = Restart { reason: "node b is lost".into(), counted: false, left: 0 };
        let actions = machine.handle(Event::Reform("node b is lost".into()));
        assert_eq!(actions, [Action::Announce(told), Action::Stop(SIGTERM)]);
        machine.handle(died(0, Exit::Code(1)));
        assert_eq!(machine.handle(Event::Cleared), [Action::Join]);
    }

    #[test]
    fn news_that_come_between_the_last_success_and_the_barrier_let_all_workers_run_once_more() {
        let mut machine = running(1, 0);
        machine.handle(died(0, Exit::Code(0)));
        machine.handle(Event::Cleared);
        let told = Restart { reason: "node b starts anew".into(), counted: false, left: 0 };
        let actions = machine.handle(Event::Reform("node b starts anew".into()));
        assert_eq!(actions, [Action::Announce(told), Action::Join]);
        assert_eq!(machine.handle(Event::Reform("told twice".into())), []);
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
    fn what_cannot_be_executed_is_not_tried_again() {
        let mut machine = running(1, 3);
        assert_eq!(machine.handle(died(0, Exit::NotStarted("no such file".into()))), [Action::Clear]);
        assert_eq!(machine.handle(Event::Cleared), [Action::CloseJob, Action::Finish(Outcome::WorkersFailed)]);
        let mut machine = running(2, 3);
        let why = || "too many processes".to_owned();
        assert_eq!(machine.handle(Event::NotStarted { started: 1, why: why() }), [Action::Stop(SIGTERM)]);
        assert_eq!(machine.handle(died(0, Exit::Signal(15))), [Action::Clear]);
        assert_eq!(machine.handle(Event::Cleared), [Action::CloseJob, Action::Finish(Outcome::Failed(why()))]);
    }

    /// The world as the machine may meet it: it answers actions, and throws in anything else at any time.
    struct World {
        machine: Machine,
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

        /// What happens by itself when nothing else does.
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
        0..12_u8
    }

    proptest! {
        #[test]
        fn never_starts_over_the_living_and_always_comes_to_one_end(
            events in proptest::collection::vec(any_event(), 0..40),
            max_restarts in 0..3_u32,
        ) {
            let mut machine = Machine::new(max_restarts);
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
                    10 if std::mem::take(&mut world.clearing) => world.feed(Event::Cleared),
                    _ => world.feed(Event::Formed { workers: 3 }),
                }
            }
            world.settle();
            prop_assert!(world.finished.is_some(), "no end: {:?}", world.machine);
        }
    }
}
