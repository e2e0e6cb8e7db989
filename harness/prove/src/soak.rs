//! Random scenarios from a seed: each is a function of the seed and its index in the series, so that it can be replayed alone.
//!
//! With `--stops`, the job is stopped and started again until it succeeds: one to three signals at random moments, to the launcher or, as
//! a scheduler sends them, to all processes of the node. Each rank has processes of its own, like data loaders. Most signals come at a
//! step, where a snapshot can follow; the others come at any time, also before the first step. If all signals only request snapshots, no
//! step is repeated.

use std::collections::BTreeMap;

use lockstep_contract::fault::SavePhase;
use rand_mt::Mt64;

use crate::fault::{Fault, FaultAction, When, Who};
use crate::scenario::{Expect, RunSpec, Scenario};
use crate::soak_elastic;
use crate::soak_nodes::{self, Dice, aimed, by_clock, fault, milliseconds};

/// Steps from one snapshot to the next.
pub(crate) const SAVE_EVERY: u64 = 3;

#[derive(Clone, Copy, Debug)]
pub(crate) struct RandomSeries {
    pub(crate) seed: u64,
    pub(crate) ranks: usize,
    pub(crate) nodes: usize,
    /// Signals that stop the job, in place of faults; on one node.
    pub(crate) stops: bool,
    /// The number of ranks changes; on several nodes.
    pub(crate) elastic: bool,
}

/// Scenario `index` of the series.
pub(crate) fn draw(series: RandomSeries, index: u64) -> Scenario {
    let RandomSeries { seed, ranks, nodes, stops, elastic } = series;
    // An odd factor spreads neighbours over the whole range (Knuth, TAOCP 6.4: the golden ratio times 2^64).
    let mut dice = Dice(Mt64::new(seed ^ index.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15)));
    let replay = replay(series, index);
    if stops {
        return draw_stops(&mut dice, seed, index, ranks, &replay);
    }
    if elastic {
        return soak_elastic::draw(&mut dice, seed, index, nodes, &replay);
    }
    if nodes > 1 {
        return soak_nodes::draw(&mut dice, seed, index, ranks, nodes, &replay);
    }
    let run = spec(ranks, 8);
    // Two faults at once are the least tested case of recovery.
    let count = if dice.below(3) == 0 { 2 } else { 1 };
    let mut faults: Vec<Fault> = Vec::new();
    let mut from = 0;
    for _ in 0..count {
        let last = run.epochs * run.steps_per_epoch() - 1;
        if from > last {
            break;
        }
        let (fault, at) = one(&mut dice, &run, from);
        faults.push(fault);
        from = at + 1;
    }
    let expect = expected(&faults);
    let descriptions: Vec<_> = faults.iter().map(Fault::to_string).collect();
    Scenario {
        name: format!("soak-{seed}-{index}"),
        title: descriptions.join("; "),
        shows: format!("Drawn at random: `lockstep inject {replay}`."),
        run,
        expect,
        faults,
    }
}

/// The arguments that repeat only this scenario.
pub(crate) fn replay(RandomSeries { seed, ranks, nodes, stops, elastic }: RandomSeries, index: u64) -> String {
    let place = format!("--soak 1 --seed {seed} --skip {index}");
    if elastic {
        return format!("{place} --elastic --nodes {nodes}");
    }
    let nodes = if nodes > 1 { format!(" --nodes {nodes}") } else { String::new() };
    let stops = if stops { " --stops" } else { "" };
    format!("{place} --ranks {ranks}{nodes}{stops}")
}

/// The number of faults of each kind, the most frequent first.
pub(crate) fn kinds<'a>(scenarios: impl Iterator<Item = &'a Scenario>) -> Vec<(String, usize)> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for scenario in scenarios {
        scenario.faults.iter().for_each(|fault| *counts.entry(kind(fault)).or_default() += 1);
        if scenario.run.late_seconds > 0.0 {
            *counts.entry("a node comes late".into()).or_default() += 1;
        }
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    counts
}

/// A fault's kind, without its numbers: `guest: SIGKILL`.
pub(crate) fn kind(fault: &Fault) -> String {
    let who = match fault.who {
        Who::Rank(_) => "rank",
        Who::Agent(0) => "agent of the store host",
        Who::Agent(_) => "agent of a guest",
        Who::Node(0) => "store host",
        Who::Node(_) => "guest",
    };
    let what = |action: &FaultAction| match action {
        FaultAction::Exit(_) => "exit code".to_owned(),
        FaultAction::SlowNetwork(_) => "network slowed".to_owned(),
        other => other.to_string(),
    };
    let actions: Vec<_> = fault.what.0.iter().map(what).collect();
    let save = if fault.when.save.is_some() { " in a save" } else { "" };
    format!("{who}: {}{save}", actions.join(", then "))
}

/// 2 epochs of this many steps, whatever the number of ranks.
fn spec(ranks: usize, steps: u64) -> RunSpec {
    let default = RunSpec::default();
    let samples = steps * (default.batch_size * ranks) as u64;
    RunSpec { ranks, epochs: 2, samples, save_every_steps: SAVE_EVERY, max_restarts: 4, ..default }
}

/// A fault at step `from` of the job or later, counted over all epochs, and its step.
pub(crate) fn one(dice: &mut Dice, run: &RunSpec, from: u64) -> (Fault, u64) {
    let (steps, last) = (run.steps_per_epoch(), run.epochs * run.steps_per_epoch() - 1);
    let saves: Vec<u64> = (from..=last).filter(|step| is_saved_after(*step, steps)).collect();
    if !saves.is_empty() && dice.below(3) == 0 {
        let at = saves[dice.below(saves.len() as u64) as usize];
        return (at_save(dice, at, steps), at);
    }
    let at = from + dice.below(last - from + 1);
    let rank = dice.below(run.ranks as u64) as usize;
    let when = When { epoch: Some(at / steps), step: Some(at % steps), ..When::default() };
    let what = match dice.below(8) {
        // A snapshot must exist to be damaged, and rank 0 is the one that saves it.
        0 if at > SAVE_EVERY => return (fault(0, when, vec![FaultAction::TearSnapshot, FaultAction::Kill]), at),
        1 if at > SAVE_EVERY => return (fault(0, when, vec![FaultAction::FlipSnapshotBit, FaultAction::Kill]), at),
        2 => FaultAction::Term,
        3 => FaultAction::Segfault,
        4 => FaultAction::Panic,
        5 => FaultAction::Exit(1 + dice.below(120) as i32),
        _ => FaultAction::Kill,
    };
    (fault(rank, when, vec![what]), at)
}

/// During the save that follows step `at`.
fn at_save(dice: &mut Dice, at: u64, steps: u64) -> Fault {
    let next = at + 1;
    let phases = [SavePhase::HalfWritten, SavePhase::Written, SavePhase::Named];
    let phase = phases[dice.below(3) as usize];
    let when = When { epoch: Some(next / steps), step: Some(next % steps), save: Some(phase), ..When::default() };
    let fails = phase != SavePhase::Named && dice.below(4) == 0;
    fault(0, when, vec![if fails { FaultAction::NoSpace } else { FaultAction::Kill }])
}

/// When lab 06 saves: every n steps of an epoch, and at its end.
fn is_saved_after(step: u64, steps: u64) -> bool {
    let next = step % steps + 1;
    next == steps || next.is_multiple_of(SAVE_EVERY)
}

/// One restart for each death. But snapshots are saved in the background: when a fault hits a save, the next fault may
/// already have happened, and one restart handles both.
fn expected(faults: &[Fault]) -> Expect {
    let deaths = faults.iter().filter(|fault| is_deadly(fault)).count() as u64;
    let overlap = deaths > 1 && faults.iter().rev().skip(1).any(|fault| fault.when.save.is_some());
    let (restarts, restarts_at_most) = if overlap { (None, Some(deaths)) } else { (Some(deaths), None) };
    Expect { restarts, restarts_at_most, ..Expect::default() }
}

fn is_deadly(fault: &Fault) -> bool {
    fault.what.0.iter().any(|action| *action != FaultAction::NoSpace)
}

/// Signals by the clock come within this many milliseconds: as long as a job takes to start, on a machine with other work.
const STOPPED_WITHIN: u64 = 3_000;
/// Steps of an epoch: many, so that a signal that comes at one of them still meets a job that trains.
const STEPS_STOPPED: u64 = 50;
/// More than a run usually does between two signals, so that most snapshots are those that signals ask for.
const SAVE_EVERY_STOPPED: u64 = 40;
/// Steps at the end at which no signal is aimed.
const NO_STOP_IN_LAST: u64 = 25;

/// Scenario `index` of the series for `seed`, with this many ranks on one node. `replay` are the arguments that repeat it.
pub(crate) fn draw_stops(dice: &mut Dice, seed: u64, index: u64, ranks: usize, replay: &str) -> Scenario {
    let run = RunSpec {
        save_every_steps: SAVE_EVERY_STOPPED,
        requeues: 8,
        snapshot_on: Some("SIGTERM".into()),
        loader_processes: 2,
        max_restarts: 8,
        ..spec(ranks, STEPS_STOPPED)
    };
    let faults: Vec<Fault> = (0..1 + dice.below(3)).map(|_| stop(dice, &run)).collect();
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
fn stop(dice: &mut Dice, run: &RunSpec) -> Fault {
    let actions = [FaultAction::Term, FaultAction::AskToSaveAndEnd, FaultAction::AskToSave, FaultAction::Interrupt];
    let action = actions[dice.below(4) as usize].clone();
    let who = if dice.below(2) == 0 { Who::Node(0) } else { Who::Agent(0) };
    if dice.below(4) == 0 {
        return by_clock(who, action, milliseconds(dice.below(STOPPED_WITHIN)));
    }
    let at = dice.below(run.epochs * STEPS_STOPPED - NO_STOP_IN_LAST);
    let when = When { epoch: Some(at / STEPS_STOPPED), step: Some(at % STEPS_STOPPED), ..When::default() };
    aimed(who, when, vec![action])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::scenario_file::parse;

    fn faults(seed: u64, ranks: usize) -> RandomSeries {
        RandomSeries { seed, ranks, nodes: 1, stops: false, elastic: false }
    }

    #[test]
    fn draws_each_scenario_from_its_index_alone() {
        assert_eq!(draw(faults(7, 2), 3), draw(faults(7, 2), 3));
        let titles: BTreeSet<_> = (0..50).map(|index| draw(faults(7, 2), index).title).collect();
        assert!(titles.len() > 40, "{titles:#?}");
        assert_ne!(draw(faults(8, 2), 3).title, draw(faults(7, 2), 3).title);
    }

    #[test]
    fn draws_only_scenarios_that_can_be_written_and_read() {
        for index in 0..500 {
            let scenario = draw(faults(1, 1 + index as usize % 4), index);
            assert_eq!(parse("x", &scenario.to_toml()).unwrap(), scenario);
            assert_eq!(scenario.outside().count(), 0, "exact faults only: a replay must be the same");
        }
    }

    #[test]
    fn draws_every_action_saves_and_pairs() {
        let drawn: Vec<_> = (0..500).map(|index| draw(faults(2, 2), index)).collect();
        let has = |action: &FaultAction| drawn.iter().any(|scenario| scenario.has(|one| one == action));
        for action in [
            FaultAction::Kill,
            FaultAction::Term,
            FaultAction::Segfault,
            FaultAction::Panic,
            FaultAction::TearSnapshot,
            FaultAction::FlipSnapshotBit,
            FaultAction::NoSpace,
        ] {
            assert!(has(&action), "{action}");
        }
        let faults: Vec<_> = drawn.iter().flat_map(|scenario| &scenario.faults).collect();
        for phase in [SavePhase::HalfWritten, SavePhase::Written, SavePhase::Named] {
            assert!(faults.iter().any(|fault| fault.when.save == Some(phase)), "{phase:?}");
        }
        let pairs = drawn.iter().filter(|scenario| scenario.faults.len() == 2).count();
        assert!((100..300).contains(&pairs), "{pairs}");
        assert!([0, 1].iter().all(|rank| faults.iter().any(|fault| fault.who == Who::Rank(*rank))));
    }

    #[test]
    fn expects_a_restart_for_each_death() {
        for index in 0..200 {
            let scenario = draw(faults(3, 2), index);
            let deaths = scenario.faults.iter().filter(|fault| fault.what.0 != [FaultAction::NoSpace]).count();
            let overlap = deaths == 2 && scenario.faults[0].when.save.is_some();
            let Expect { restarts, restarts_at_most, .. } = scenario.expect;
            assert_eq!(if overlap { restarts_at_most } else { restarts }, Some(deaths as u64), "{index}");
            assert_ne!(restarts.is_some(), restarts_at_most.is_some());
        }
    }

    const STOPS: RandomSeries = RandomSeries { seed: 5, ranks: 2, nodes: 1, stops: true, elastic: false };

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
            assert_eq!(scenario.run.steps_per_epoch(), STEPS_STOPPED);
        }
    }
}
