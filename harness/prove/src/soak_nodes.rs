//! Random scenarios for several nodes: any fault of the catalogue, or two in a row, at a random moment.
//!
//! Faults inside a rank happen at an exact step. Faults of agents, nodes, disks and networks happen at a time, so that they
//! also hit the start, the rendezvous, a restart and the end, or come too late, which is not a failure.

use lockstep_contract::fault::SavePhase;
use rand_mt::Mt64;

use crate::fault::{Fault, FaultAction, What, When, Who};
use crate::scenario::{Disks, Expect, RunSpec, Scenario};

/// Steps from one snapshot to the next.
const SAVE_EVERY: u64 = 3;
/// Timed faults happen within this many seconds: a job takes about two on an idle machine.
const WITHIN: u64 = 3_000;
/// Seconds that workers may take to end if one of them ignores SIGTERM.
const STOP_TIMEOUT: f64 = 0.5;
/// Two faults that each end the job may cost half a minute each before it is started again.
const TIMEOUT: f64 = 240.0;
/// In half of the scenarios, nodes that are lost or cut off are silent for this many seconds: longer than the heartbeat timeout.
const SILENCE: f64 = 5.0;
/// The others wait for 1.5 s then, in place of 15.
const NOTICED: &str = "keep_alive_interval=0.5,heartbeat_timeout=1.5";

/// Scenario `index` of the series for `seed`, with this many ranks on this many nodes. `replay` are the arguments that
/// repeat it.
pub(crate) fn draw(dice: &mut Dice, seed: u64, index: u64, ranks: usize, nodes: usize, replay: &str) -> Scenario {
    let mut draft = Draft { run: spec(dice, ranks, nodes), faults: Vec::new(), from: 0 };
    let count = if dice.below(3) == 0 { 2 } else { 1 };
    (0..count).for_each(|_| draft.add(dice));
    let Draft { mut run, mut faults, .. } = draft;
    // A job ends when the agent at its endpoint is asked to end, or when no agent may go on without the others. It may end when it loses a
    // node just after its workers succeeded.
    (run.requeues, run.requeue_order) = (2, order(dice, nodes));
    if dice.below(2) == 0 && faults.iter_mut().filter_map(make_silent).count() > 0 {
        run.rdzv_conf = Some(NOTICED.into());
    }
    let expect = Expect { faults_may_miss: true, ..Expect::default() };
    let descriptions: Vec<_> = faults.iter().map(Fault::to_string).collect();
    let late = (run.late_seconds > 0.0).then(|| format!("node {} comes {} s late", nodes - 1, run.late_seconds));
    Scenario {
        name: format!("soak-{seed}-{index}"),
        title: descriptions.into_iter().chain(late).collect::<Vec<_>>().join("; "),
        shows: format!("Drawn at random: `lockstep inject {replay}`."),
        run,
        expect,
        faults,
    }
}

/// A scenario in construction.
struct Draft {
    run: RunSpec,
    faults: Vec<Fault>,
    /// The first step, counted over all epochs, at which the next exact fault may happen.
    from: u64,
}

/// 2 epochs of 8 steps, whatever the number of ranks; mostly the quickest lab.
fn spec(dice: &mut Dice, ranks: usize, nodes: usize) -> RunSpec {
    let default = RunSpec::default();
    let samples = 8 * (default.batch_size * ranks) as u64;
    let disks = if dice.below(2) == 0 { Disks::Shared } else { Disks::OfNodes };
    let late_seconds = if dice.below(8) == 0 { milliseconds(dice.below(1_500)) } else { 0.0 };
    let (lab, args) = lab(dice.below(10));
    RunSpec {
        lab,
        args,
        ranks,
        nodes,
        disks,
        late_seconds,
        samples,
        epochs: 2,
        save_every_steps: SAVE_EVERY,
        max_restarts: 6,
        timeout_seconds: TIMEOUT,
        ..default
    }
}

fn lab(number: u64) -> (Option<String>, Vec<String>) {
    let words = |words: &str| words.split(' ').map(str::to_owned).collect();
    match number {
        0 => (Some("07-cifar-resnet".into()), words("--width 8 --workers 1")),
        1 => {
            let args = "--width 8 --image-size 32 --lr 0.001 --workers 1 --best {weights}/best.safetensors";
            (Some("08-image-folder".into()), words(args))
        }
        _ => (None, Vec::new()),
    }
}

impl Draft {
    fn add(&mut self, dice: &mut Dice) {
        let last = self.run.epochs * self.run.steps_per_epoch() - 1;
        let outside = dice.below(2) == 0 || self.from > last;
        let faults = if outside { self.outside(dice) } else { self.inside(dice, last) };
        self.faults.extend(faults);
    }

    /// A fault of a rank at an exact step, or in a save.
    fn inside(&mut self, dice: &mut Dice, last: u64) -> Vec<Fault> {
        let steps = self.run.steps_per_epoch();
        let at = self.from + dice.below(last - self.from + 1);
        let first = self.faults.is_empty();
        self.from = at + 1;
        let when = When { epoch: Some(at / steps), step: Some(at % steps), ..When::default() };
        let rank = dice.below(self.run.ranks as u64) as usize;
        let actions = match dice.below(10) {
            // Rank 0 must have a snapshot to damage.
            0 if first && at > SAVE_EVERY => {
                return vec![fault(0, when, vec![FaultAction::TearSnapshot, FaultAction::Kill])];
            }
            1 if first && at > SAVE_EVERY => {
                return vec![fault(0, when, vec![FaultAction::FlipSnapshotBit, FaultAction::Kill])];
            }
            2 => return vec![save(dice, at, steps)],
            3 => return self.ignores_term(rank, when),
            4 => vec![FaultAction::Term],
            5 => vec![FaultAction::Segfault],
            6 => vec![FaultAction::Panic],
            7 => vec![FaultAction::Exit(1 + dice.below(120) as i32)],
            _ => vec![FaultAction::Kill],
        };
        vec![fault(rank, when, actions)]
    }

    /// A rank that ignores SIGTERM, and the death of the next one, after which the agent asks it to end.
    fn ignores_term(&mut self, rank: usize, when: When) -> Vec<Fault> {
        self.run.stop_timeout_seconds = Some(STOP_TIMEOUT);
        let next = (rank + 1) % self.run.ranks;
        vec![fault(rank, when.clone(), vec![FaultAction::IgnoreTerm]), fault(next, when, vec![FaultAction::Kill])]
    }

    /// A timed fault of a node.
    fn outside(&mut self, dice: &mut Dice) -> Vec<Fault> {
        let at = milliseconds(dice.below(WITHIN));
        let (ranks, nodes) = (self.run.ranks as u64, self.run.nodes as u64);
        let (any, guest) = (dice.below(nodes) as usize, 1 + dice.below(nodes - 1) as usize);
        let rank = Who::Rank(dice.below(ranks) as usize);
        let brief = milliseconds(100 + dice.below(1_400));
        let one = |who, action| by_clock(who, action, at);
        let one = match dice.below(14) {
            0 => replaced(one(Who::Agent(guest), FaultAction::Kill), brief),
            1 => replaced(one(Who::Node(guest), FaultAction::Kill), brief),
            2 => replaced(one(Who::Agent(guest), FaultAction::Term), brief),
            3 => replaced(one(Who::Node(0), FaultAction::Kill), brief),
            // It takes the job with it, which is started again.
            4 => one(Who::Agent(0), FaultAction::Term),
            5 => return (0..self.run.nodes).map(|node| by_clock(Who::Node(node), FaultAction::Kill, at)).collect(),
            6 => healed(one(rank, FaultAction::Stop), brief),
            7 => healed(one(Who::Agent(any), FaultAction::Stop), brief),
            8 => healed(one(Who::Node(any), FaultAction::Stop), brief),
            9 => healed(one(Who::Node(0), FaultAction::DiskFull), brief),
            10 => healed(one(Who::Node(0), FaultAction::ReadOnly), brief),
            11 => healed(one(Who::Node(any), FaultAction::CutNetwork), brief),
            12 => healed(one(Who::Node(any), FaultAction::SlowNetwork(2_000 + dice.below(20_000))), brief),
            _ if dice.below(2) == 0 => one(rank, FaultAction::Kill),
            _ => replaced(one(Who::Agent(0), FaultAction::Kill), brief),
        };
        vec![one]
    }
}

/// Makes a node that is lost, or cut off, silent; `None` for other faults.
fn make_silent(fault: &mut Fault) -> Option<()> {
    let (Who::Node(_), [action]) = (fault.who, &fault.what.0[..]) else { return None };
    let actions = match action {
        FaultAction::Kill if fault.replace_after_seconds.is_some() => vec![FaultAction::CutNetwork, FaultAction::Kill],
        FaultAction::CutNetwork => vec![FaultAction::CutNetwork],
        _ => return None,
    };
    let silent = Fault { what: What(actions), ..fault.clone() };
    *fault = replaced(healed(silent, SILENCE), SILENCE);
    Some(())
}

fn save(dice: &mut Dice, at: u64, steps: u64) -> Fault {
    let saved = |step: u64| step % steps + 1 == steps || (step % steps + 1).is_multiple_of(SAVE_EVERY);
    // The last step is followed by a save, too.
    let at = (at..).find(|step| saved(*step)).unwrap_or(at);
    let phases = [SavePhase::HalfWritten, SavePhase::Written, SavePhase::Named];
    let phase = phases[dice.below(3) as usize];
    let (epoch, step) = (Some((at + 1) / steps), Some((at + 1) % steps));
    let fails = phase != SavePhase::Named && dice.below(4) == 0;
    let action = if fails { FaultAction::NoSpace } else { FaultAction::Kill };
    fault(0, When { epoch, step, save: Some(phase), ..When::default() }, vec![action])
}

fn replaced(fault: Fault, seconds: f64) -> Fault {
    Fault { replace_after_seconds: Some(seconds), ..fault }
}

fn healed(fault: Fault, seconds: f64) -> Fault {
    Fault { for_seconds: Some(seconds), ..fault }
}

/// The nodes, shuffled (Fisher and Yates).
pub(crate) fn order(dice: &mut Dice, nodes: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..nodes).collect();
    (1..nodes).rev().for_each(|place| order.swap(place, dice.below(place as u64 + 1) as usize));
    order
}

pub(crate) fn fault(rank: usize, when: When, actions: Vec<FaultAction>) -> Fault {
    aimed(Who::Rank(rank), when, actions)
}

pub(crate) fn aimed(who: Who, when: When, actions: Vec<FaultAction>) -> Fault {
    Fault { who, when, what: What(actions), for_seconds: None, replace_after_seconds: None }
}

/// A fault that comes some seconds after the start.
pub(crate) fn by_clock(who: Who, action: FaultAction, at: f64) -> Fault {
    aimed(who, When { after_seconds: Some(at), ..When::default() }, vec![action])
}

/// In seconds.
pub(crate) fn milliseconds(count: u64) -> f64 {
    count as f64 / 1_000.0
}

pub(crate) struct Dice(pub(crate) Mt64);

impl Dice {
    /// From 0 to `end` - 1; `end` is small, so the bias of the remainder does not matter.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0.next_u64() % end.max(1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::scenario_file::parse;
    use crate::soak::RandomSeries;

    fn draw(seed: u64, index: u64, ranks: usize, nodes: usize) -> Scenario {
        crate::soak::draw(RandomSeries { seed, ranks, nodes, stops: false, elastic: false }, index)
    }

    #[test]
    fn draws_only_scenarios_that_can_be_written_and_read() {
        for index in 0..1_000 {
            let nodes = 2 + index as usize % 2;
            let scenario = draw(1, index, 2 * nodes, nodes);
            assert_eq!(parse("x", &scenario.to_toml()).unwrap(), scenario, "{}", scenario.to_toml());
            assert_eq!(scenario, draw(1, index, 2 * nodes, nodes));
        }
    }

    #[test]
    fn draws_every_fault_of_the_catalogue_and_pairs() {
        let drawn: Vec<_> = (0..1_000).map(|index| draw(2, index, 3, 3)).collect();
        let faults = || drawn.iter().flat_map(|scenario| &scenario.faults);
        let kinds: BTreeSet<String> = faults().map(crate::soak::kind).collect();
        for kind in [
            "rank: SIGKILL",
            "rank: SIGTERM",
            "rank: SIGSEGV",
            "rank: panic",
            "rank: exit code",
            "rank: SIGSTOP",
            "rank: SIGTERM ignored",
            "rank: newest snapshot torn, then SIGKILL",
            "rank: bit of the newest snapshot flipped, then SIGKILL",
            "rank: SIGKILL in a save",
            "rank: no space (made up) in a save",
            "agent of a guest: SIGKILL",
            "agent of a guest: SIGTERM",
            "agent of a guest: SIGSTOP",
            "guest: SIGKILL",
            "guest: SIGSTOP",
            "store host: SIGKILL",
            "store host: network cut, then SIGKILL",
            "guest: network cut, then SIGKILL",
            "agent of the store host: SIGKILL",
            "store host: SIGSTOP",
            "agent of the store host: SIGTERM",
            "agent of the store host: SIGSTOP",
            "store host: disk full",
            "store host: disk read-only",
            "guest: network cut",
            "guest: network slowed",
            "store host: network cut",
            "store host: network slowed",
        ] {
            assert!(kinds.contains(kind), "{kind}: {kinds:#?}");
        }
        let cut_off = |fault: &&Fault| fault.who == Who::Node(0) && fault.what.0 == [FaultAction::CutNetwork];
        assert!(faults().filter(cut_off).any(|fault| fault.replace_after_seconds == Some(SILENCE)));
        let count = |of: &dyn Fn(&Scenario) -> bool| drawn.iter().filter(|scenario| of(scenario)).count();
        assert!((250..500).contains(&count(&|one| one.faults.len() > 1)));
        assert!(count(&|one| one.run.late_seconds > 0.0) > 50);
        assert!(count(&|one| one.run.disks == Disks::OfNodes) > 300);
        assert!(count(&|one| one.run.lab.is_some()) > 100);
        assert!(count(&|one| one.run.requeues > 0 && one.run.requeue_order != [0, 1, 2]) > 50);
    }

    #[test]
    fn replaces_every_lost_agent_but_starts_a_job_again_that_has_none_left_or_was_asked_to_end() {
        for index in 0..1_000 {
            let scenario = draw(3, index, 3, 3);
            let ends = |fault: &&Fault| {
                fault.what.0.iter().any(|action| matches!(action, FaultAction::Kill | FaultAction::Term))
            };
            let mut of_nodes = scenario.faults.iter().filter(ends).filter(|fault| !matches!(fault.who, Who::Rank(_)));
            let all = of_nodes.clone().count() >= 3;
            let fine = |fault: &Fault| {
                let asked = fault.who == Who::Agent(0) && fault.what.0 == [FaultAction::Term];
                all || fault.replace_after_seconds.is_some() != asked
            };
            assert!(scenario.run.requeues > 0 && of_nodes.all(fine), "{index}: {}", scenario.title);
        }
    }
}
