//! Random scenarios for a training whose number of ranks changes: nodes are lost for good, leave, and come, while ranks are killed and
//! snapshots damaged. The final bits are those of one rank, and only the faults of ranks cost a restart.
//!
//! Every change comes at an exact step, where rank 0 waits for it, so each scenario also knows the numbers of ranks that it trains on.

use crate::fault::{Fault, FaultAction, When, Who};
use crate::scenario::{Disks, Expect, RunSpec, Scenario};
use crate::soak::{self, SAVE_EVERY};
use crate::soak_nodes::{self, Dice, aimed};

/// Steps of an epoch; there are two.
const STEPS: u64 = 8;
/// Samples in a batch of one virtual rank.
const BATCH: usize = 4;
/// Each start of a job takes some seconds on a busy machine.
const TIMEOUT: f64 = 300.0;

/// Scenario `index` of the series for `seed`, with this many nodes. `replay` are the arguments that repeat it.
pub(crate) fn draw(dice: &mut Dice, seed: u64, index: u64, nodes: usize, replay: &str) -> Scenario {
    let mut draft = Draft::new(dice, nodes);
    let last = draft.run.epochs * STEPS - 1;
    let mut at = 1 + dice.below(4);
    // Without a loss first, there is nothing to come back.
    draft.lose(dice, at);
    for _ in 0..1 + dice.below(3) {
        at += 1 + dice.below(4);
        if at < last {
            at = draft.change(dice, at);
        }
    }
    at += 1 + dice.below(4);
    if at < last && dice.below(4) == 0 {
        draft.requeue(dice, at);
    }
    let Draft { run, faults, world_sizes, .. } = draft;
    let descriptions: Vec<_> = faults.iter().map(Fault::to_string).collect();
    let mut scenario = Scenario {
        name: format!("elastic-{seed}-{index}"),
        title: descriptions.join("; "),
        shows: format!("Drawn at random: `lockstep inject {replay}`."),
        run,
        expect: Expect { world_sizes, ..Expect::default() },
        faults,
    };
    if scenario.has(|action| matches!(action, FaultAction::TearSnapshot | FaultAction::FlipSnapshotBit)) {
        scenario.run.disks = Disks::Shared; // a rank that has just moved to another node has none to damage there
    }
    scenario
}

/// A scenario in construction.
struct Draft {
    run: RunSpec,
    faults: Vec<Fault>,
    /// Whether each node takes part.
    here: Vec<bool>,
    world_sizes: Vec<usize>,
}

impl Draft {
    fn new(dice: &mut Dice, nodes: usize) -> Self {
        let workers: Vec<usize> = (0..nodes).map(|_| 1 + dice.below(2) as usize).collect();
        let ranks: usize = workers.iter().sum();
        let virtual_ranks = ranks + dice.below(4) as usize;
        let disks = if dice.below(2) == 0 { Disks::Shared } else { Disks::OfNodes };
        let run = RunSpec {
            ranks,
            nodes,
            workers,
            min_nodes: Some(1),
            virtual_ranks: Some(virtual_ranks),
            disks,
            max_restarts: 0,
            epochs: 2,
            batch_size: BATCH,
            samples: STEPS * (BATCH * virtual_ranks) as u64,
            save_every_steps: SAVE_EVERY,
            timeout_seconds: TIMEOUT,
            ..RunSpec::default()
        };
        Draft { run, faults: Vec::new(), here: vec![true; nodes], world_sizes: vec![ranks] }
    }

    /// A change of members or a fault of a rank, at this step or later; returns its step.
    fn change(&mut self, dice: &mut Dice, at: u64) -> u64 {
        match dice.below(6) {
            0 | 1 if self.here.contains(&false) => self.join(dice, at),
            0..=3 if self.those(true).len() > 1 => self.lose(dice, at),
            _ => return self.strike(dice, at),
        }
        at
    }

    /// The nodes that take part, or that do not.
    fn those(&self, here: bool) -> Vec<usize> {
        (0..self.here.len()).filter(|node| self.here[*node] == here).collect()
    }

    /// A node is lost, or its agent is told to leave.
    fn lose(&mut self, dice: &mut Dice, at: u64) {
        let node = one_of(dice, &self.those(true));
        let (who, action) = match dice.below(4) {
            0 | 1 => (Who::Node(node), FaultAction::Kill),
            2 => (Who::Agent(node), FaultAction::Kill),
            _ => (Who::Agent(node), FaultAction::Term),
        };
        self.add(who, action, at);
        self.set(node, false);
    }

    /// A node comes. While the one at the endpoint is lost, no other finds the job.
    fn join(&mut self, dice: &mut Dice, at: u64) {
        let node = if self.here[0] { one_of(dice, &self.those(false)) } else { 0 };
        self.add(Who::Node(node), FaultAction::Join, at);
        self.set(node, true);
    }

    /// A fault of a rank, which costs a restart. Not in the very last save, when the workers of other nodes may have succeeded: no round
    /// follows then.
    fn strike(&mut self, dice: &mut Dice, from: u64) -> u64 {
        let now = RunSpec { ranks: self.ranks(), ..self.run.clone() };
        let (fault, at) = loop {
            let drawn = soak::one(dice, &now, from);
            if drawn.0.when.epoch < Some(now.epochs) {
                break drawn;
            }
        };
        self.run.max_restarts += 1;
        self.faults.push(fault);
        at
    }

    /// All nodes are lost, and the job is started again on some of them, in any order.
    fn requeue(&mut self, dice: &mut Dice, at: u64) {
        for node in self.those(true) {
            self.add(Who::Node(node), FaultAction::Kill, at);
        }
        let mut order = soak_nodes::order(dice, self.run.nodes);
        order.truncate(1 + dice.below(self.run.nodes as u64) as usize);
        // The nodes of the new start take the first places, with the numbers of workers there.
        let ranks = self.run.workers[..order.len()].iter().sum();
        self.world_sizes.push(ranks);
        self.world_sizes.dedup();
        (self.run.requeues, self.run.requeue_order) = (1, order);
    }

    fn add(&mut self, who: Who, action: FaultAction, at: u64) {
        let when = When { epoch: Some(at / STEPS), step: Some(at % STEPS), ..When::default() };
        self.faults.push(aimed(who, when, vec![action]));
    }

    fn set(&mut self, node: usize, here: bool) {
        self.here[node] = here;
        self.world_sizes.push(self.ranks());
    }

    fn ranks(&self) -> usize {
        self.those(true).into_iter().map(|node| self.run.workers[node]).sum()
    }
}

fn one_of(dice: &mut Dice, nodes: &[usize]) -> usize {
    nodes[dice.below(nodes.len() as u64) as usize]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::scenario_file::parse;
    use crate::soak::RandomSeries;

    fn drawn(seed: u64, nodes: usize) -> Vec<Scenario> {
        let series = RandomSeries { seed, ranks: 2, nodes, stops: false, elastic: true };
        (0..1_000).map(|index| soak::draw(series, index)).collect()
    }

    #[test]
    fn draws_only_scenarios_that_can_be_written_and_read() {
        for scenario in [drawn(1, 3), drawn(2, 4)].concat() {
            assert_eq!(parse("x", &scenario.to_toml()).unwrap(), scenario, "{}", scenario.to_toml());
        }
    }

    #[test]
    fn always_leaves_a_node_and_never_counts_a_change_of_members() {
        for scenario in drawn(3, 3) {
            let (run, text) = (&scenario.run, scenario.to_toml());
            assert!(scenario.expect.world_sizes.len() > 1 && !scenario.expect.world_sizes.contains(&0), "{text}");
            assert!(scenario.expect.world_sizes.windows(2).all(|pair| pair[0] != pair[1]), "{text}");
            let of_ranks = scenario.faults.iter().filter(|fault| matches!(fault.who, Who::Rank(_))).count();
            assert_eq!(run.max_restarts as usize, of_ranks, "{text}");
            assert_eq!((run.steps_per_epoch(), run.min_nodes), (STEPS, Some(1)), "{text}");
            assert!(scenario.faults.iter().all(|fault| fault.when.epoch < Some(run.epochs)), "{text}");
        }
    }

    #[test]
    fn draws_every_change_with_kills_and_torn_snapshots() {
        let drawn = drawn(4, 3);
        let kinds: BTreeSet<String> = drawn.iter().flat_map(|scenario| &scenario.faults).map(soak::kind).collect();
        for kind in [
            "store host: SIGKILL",
            "store host: joins",
            "guest: SIGKILL",
            "guest: joins",
            "agent of a guest: SIGKILL",
            "agent of a guest: SIGTERM",
            "agent of the store host: SIGTERM",
            "rank: SIGKILL",
            "rank: SIGKILL in a save",
            "rank: newest snapshot torn, then SIGKILL",
            "rank: bit of the newest snapshot flipped, then SIGKILL",
        ] {
            assert!(kinds.contains(kind), "{kind}: {kinds:#?}");
        }
        let count = |of: &dyn Fn(&Scenario) -> bool| drawn.iter().filter(|scenario| of(scenario)).count();
        assert!(count(&|one| one.run.requeues > 0 && one.run.requeue_order.len() < 3) > 50);
        assert!(count(&|one| one.run.disks == Disks::OfNodes) > 300);
        assert!(count(&|one| one.expect.world_sizes.len() > 3) > 50);
    }
}
