//! Random stops of a job that is started again until it succeeds: one to three signals at random moments, to the launcher or, as a
//! scheduler sends them, to all processes of the node. Each rank has processes of its own, as data loaders are.
//!
//! Most signals come at a step, where a snapshot can follow; the others come at any time of the job, also before its first step. Where
//! only wishes for a snapshot come, no step is repeated.

use super::{Dice, aimed, by_clock, milliseconds, spec};
use crate::runner::scenario::{Expect, Fault, FaultAction, RunSpec, Scenario, When, Who};

/// Signals by the clock come within this many milliseconds: as long as a job takes to start, on a machine with other work.
const WITHIN: u64 = 3_000;
/// Steps of an epoch: many, so that a signal that comes at one of them still meets a job that trains.
const STEPS: u64 = 50;
/// More than a run usually does between two signals, so that most snapshots are those that signals ask for.
const SAVE_EVERY: u64 = 40;
/// Steps at the end at which no signal is aimed.
const LAST: u64 = 25;

/// Scenario `index` of the series for `seed`, with this many ranks on one node. `replay` are the arguments that repeat it.
pub(super) fn draw(dice: &mut Dice, seed: u64, index: u64, ranks: usize, replay: &str) -> Scenario {
    let run = RunSpec {
        save_every_steps: SAVE_EVERY,
        requeues: 8,
        snapshot_on: Some("SIGTERM".into()),
        loader_processes: 2,
        max_restarts: 8,
        ..spec(ranks, STEPS)
    };
    let faults: Vec<Fault> = (0..1 + dice.below(3)).map(|_| one(dice, &run)).collect();
    let descriptions: Vec<_> = faults.iter().map(Fault::to_string).collect();
    let count_of = |action| faults.iter().filter(|fault| fault.what.0 == std::slice::from_ref(action)).count();
    // SIGINT stops at once, and so does a second SIGTERM that comes while a slow machine still saves.
    let interrupted = count_of(&FaultAction::Interrupt) > 0;
    let steps_repeated_at_most = (!interrupted && count_of(&FaultAction::Term) < 2).then_some(0);
    Scenario {
        name: format!("stops-{seed}-{index}"),
        title: descriptions.join("; "),
        shows: format!("Drawn at random: `lockstep inject {replay}`."),
        run,
        expect: Expect { faults_may_miss: true, steps_repeated_at_most, ..Expect::default() },
        faults,
    }
}

/// A signal at a step, or, one in four, at some time.
fn one(dice: &mut Dice, run: &RunSpec) -> Fault {
    let actions = [FaultAction::Term, FaultAction::AskToSaveAndEnd, FaultAction::AskToSave, FaultAction::Interrupt];
    let action = actions[dice.below(4) as usize].clone();
    let who = if dice.below(2) == 0 { Who::Node(0) } else { Who::Agent(0) };
    if dice.below(4) == 0 {
        return by_clock(who, action, milliseconds(dice.below(WITHIN)));
    }
    let at = dice.below(run.epochs * STEPS - LAST);
    let when = When { epoch: Some(at / STEPS), step: Some(at % STEPS), ..When::default() };
    aimed(who, when, vec![action])
}

#[cfg(test)]
mod tests {
    use super::super::{Series, draw};
    use super::*;
    use crate::runner::scenario::parse;

    const STOPS: Series = Series { seed: 5, ranks: 2, nodes: 1, stops: true };

    #[test]
    fn draws_all_signals_to_launchers_and_to_all_processes() {
        let drawn: Vec<_> = (0..200).map(|index| draw(STOPS, index)).collect();
        let faults: Vec<_> = drawn.iter().flat_map(|scenario| &scenario.faults).collect();
        for action in [FaultAction::Term, FaultAction::Interrupt, FaultAction::AskToSave, FaultAction::AskToSaveAndEnd]
        {
            for who in [Who::Agent(0), Who::Node(0)] {
                assert!(
                    faults.iter().any(|fault| fault.who == who && fault.what.0 == [action.clone()]),
                    "{action} {who}"
                );
            }
        }
        let at_steps = faults.iter().filter(|fault| fault.when.step.is_some()).count();
        assert!((60..90).contains(&(100 * at_steps / faults.len())), "{at_steps} of {}", faults.len());
        assert!(drawn.iter().all(|scenario| parse("x", &scenario.to_toml()).unwrap() == *scenario));
        assert!(drawn[0].shows.contains("--soak 1 --seed 5 --skip 0 --ranks 2 --stops"), "{}", drawn[0].shows);
    }

    #[test]
    fn allows_repeated_steps_only_where_a_stop_may_not_save() {
        for index in 0..200 {
            let scenario = draw(STOPS, index);
            let interrupts = scenario.has(|action| *action == FaultAction::Interrupt);
            let terms = scenario.faults.iter().filter(|fault| fault.what.0 == [FaultAction::Term]).count();
            assert_eq!(scenario.expect.steps_repeated_at_most.is_some(), !interrupts && terms < 2);
            assert_eq!(scenario.run.steps_per_epoch(), STEPS);
        }
    }
}
