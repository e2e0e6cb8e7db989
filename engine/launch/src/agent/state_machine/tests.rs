//! Orders of deaths, signals and changes of other nodes.

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
    for (event, outcome) in [(Event::SaveAndEnd(15), Outcome::Signalled(15)), (died(1, ENDED), Outcome::WorkersFailed)]
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
    assert_eq!(machine.handle(Event::Signalled(12)), [], "the same request again does not count as a second signal");
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
