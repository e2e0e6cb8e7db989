//! `lockstep measure recovery`: a running job loses a worker, a node that another replaces later, or the agent at its endpoint; how long
//! until the others are stopped, until all run again, and until all train again.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use lockstep_process::{Exit, Signals};
use lockstep_rank_messages::bench::{Model, Order, ResumedAnswer, ResumedOrder, StepAnswer, StepOrder};

use crate::connection::Mark;
use crate::exit::{Code, Refused};
use crate::job::BenchJob;
use crate::launch::launchers;
use crate::launcher::{Launcher, NOT_SHARED, Shape, idle_rank};
use crate::machine::rank_labels;
use crate::ranks::Program;
use crate::report::HostInfo;
use crate::results::Unit;
use crate::rounds::{BenchCase, CaseSide, CommonOptions, Plan, Quantity};

/// A job of these loses nodes at once; a machine without power closes no connection.
const CLOSED: &str =
    "the kernel closes a killed node's connections; one without power is noticed by its missing heartbeats";
/// In a round, each agent restarts its workers once when a node is lost, and perhaps once more when another joins.
const RESTARTS: usize = 4;

/// What a launcher does that loses its job with the agent at the endpoint.
const ENDED: &str = "all other agents have ended, with exit code 1";

/// What a job loses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Loss {
    /// A rank, as by the kernel's OOM killer
    Worker,
    /// An agent with all its ranks; then another joins. Needs ranks that train
    Node,
    /// The agent at the endpoint, with all its ranks: another takes over. Needs ranks that train; torchrun ends
    Authority,
}

/// What ranks do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Work {
    /// Nothing: they only connect to their job's store
    Idle,
    /// DDP: they import libtorch, form a process group and take steps
    Train,
    /// The same with 4 virtual ranks, from the newest of the snapshots that they save: any number of ranks goes on with the same bits
    Elastic,
}

/// The number of virtual ranks.
const VIRTUAL_RANKS: usize = 4;

/// Take a rank or a node from a running job, and show how long it takes until all ranks run and train again
#[derive(Args)]
pub(crate) struct RecoveryOptions {
    /// Ranks of a job: a list
    #[arg(long, value_name = "COUNT,…", value_delimiter = ',', default_values_t = [2, 8], value_parser = clap::value_parser!(u16).range(2..=4096))]
    ranks: Vec<u16>,
    /// What is lost: a list
    #[arg(long, value_name = "WHAT,…", value_delimiter = ',', default_values = ["worker", "node"])]
    lose: Vec<Loss>,
    /// What the ranks do of a job that loses a worker, and elastic for one that loses a node: a list
    #[arg(long, value_name = "WORK,…", value_delimiter = ',', default_values = ["idle", "train"])]
    work: Vec<Work>,
    /// Nodes of a job that loses one: as many agents, all on this machine
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u16).range(2..=256))]
    nodes: u16,
    /// Timeouts of a rendezvous of several nodes, for every launcher. Each has its own by default: torchrun waits
    /// last_call_timeout=30 for a lost node
    #[arg(long, value_name = "KEY=VALUE,…")]
    rdzv_conf: Option<String>,
    #[command(flatten)]
    common: CommonOptions,
}

/// A loss and a work to measure, for all sides.
#[derive(Clone, Copy)]
struct LossCase<'a> {
    loss: Loss,
    work: Work,
    shape: Shape,
    rounds: usize,
    patience: Duration,
    signals: &'a Signals,
}

impl RecoveryOptions {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        let (rounds, patience) = (self.common.all_rounds(), self.common.patience());
        let shapes = self.shapes()?;
        self.common.exec("recovery", |signals| {
            let (launchers, mut not_measured) = launchers(&self.common)?;
            let trainer = Program::own();
            let case = |(loss, work, shape)| LossCase { loss, work, shape, rounds, patience, signals };
            let mut cases = Vec::new();
            for case in shapes.into_iter().map(case) {
                let program = match (case.work, &trainer) {
                    (Work::Idle, _) => idle_rank(),
                    (_, Ok(program)) => program.words.clone(),
                    (_, Err(error)) => {
                        not_measured.push(format!("{}: {error:#}", case.name()));
                        continue;
                    }
                };
                let elastic = |launcher: &Launcher| launcher.clone().elastic(self.rdzv_conf.clone());
                let launchers: Vec<_> = match case.loss {
                    Loss::Worker => launchers.clone(),
                    Loss::Node | Loss::Authority => launchers.iter().map(elastic).collect(),
                };
                cases.extend(case.cases(&launchers, &program));
            }
            Ok(Plan { cases, not_measured })
        })
    }

    /// What is lost, of which work, in a job of which shape; in the order of the cases.
    fn shapes(&self) -> Result<Vec<(Loss, Work, Shape)>, Refused> {
        let mut shapes = Vec::new();
        for loss in &self.lose {
            let (works, agents) = match loss {
                Loss::Worker => (&self.work[..], 1),
                Loss::Node | Loss::Authority if self.work.contains(&Work::Elastic) => {
                    (&[Work::Elastic][..], usize::from(self.nodes))
                }
                Loss::Node | Loss::Authority => (&[Work::Train][..], usize::from(self.nodes)),
            };
            for ranks in self.ranks.iter().copied().map(usize::from) {
                let shape = Shape::of(ranks, agents)?;
                if works.contains(&Work::Elastic) && ranks > VIRTUAL_RANKS {
                    let why = format!(
                        "{ranks} ranks cannot share {VIRTUAL_RANKS} virtual ranks: --work elastic takes up to {VIRTUAL_RANKS}"
                    );
                    return Err(Refused(why));
                }
                shapes.extend(works.iter().map(|work| (*loss, *work, shape)));
            }
        }
        Ok(shapes)
    }
}

impl<'a> LossCase<'a> {
    /// A case with a side for each launcher; two, if the peer ends with what is lost: its time is none of a job that goes on.
    fn cases(self, launchers: &[Launcher], program: &[OsString]) -> Vec<BenchCase<'a>> {
        let sides = |launchers: &[Launcher], side: fn(Self, Launcher, Vec<OsString>) -> CaseSide<'a>| {
            launchers.iter().map(|launcher| side(self, launcher.clone(), program.to_vec())).collect()
        };
        let Some((ours, peers)) = launchers.split_first() else { return Vec::new() };
        let case = |name, quantities, sides: Vec<CaseSide<'a>>| {
            let labels = self.labels(sides.iter().any(|side| side.name != ours.name));
            BenchCase { name, quantities, labels, sides }
        };
        let (name, quantities) = (self.name(), self.quantities());
        match self.loss {
            Loss::Worker => vec![case(name, quantities, sides(launchers, Self::worker))],
            Loss::Node => vec![case(name, quantities, sides(launchers, Self::node))],
            Loss::Authority => {
                let ended = (format!("{name}, and the job with it"), vec![Quantity::new(ENDED, Unit::Seconds)]);
                let ours = case(name, quantities, sides(std::slice::from_ref(ours), Self::authority));
                let peers = (!peers.is_empty()).then(|| case(ended.0, ended.1, sides(peers, Self::end)));
                std::iter::once(ours).chain(peers).collect()
            }
        }
    }

    fn name(&self) -> String {
        let work = match self.work {
            Work::Idle => "",
            Work::Train => ", training",
            Work::Elastic => ", training as 4 virtual ranks",
        };
        let loss = match self.loss {
            Loss::Worker => "",
            Loss::Node => ": one is lost, then another joins",
            Loss::Authority => ": the one at the endpoint is lost",
        };
        format!("{}{work}{loss}", self.shape)
    }

    fn quantities(&self) -> Vec<Quantity> {
        let names: &[&str] = match (self.loss, self.work) {
            (Loss::Worker, Work::Idle) => &["all ranks up again", "survivors stopped"],
            (Loss::Worker, _) => &["all ranks train again", "all ranks up again", "survivors stopped"],
            (Loss::Authority, _) => {
                &["those left train again", "those left are up again", "next round formed", "survivors stopped"]
            }
            (Loss::Node, _) => &[
                "those left train again",
                "those left are up again",
                "survivors stopped",
                "all train with the new node",
                "all up with the new node",
            ],
        };
        names.iter().map(|name| Quantity::new(name, Unit::Seconds)).collect()
    }

    fn labels(&self, with_torchrun: bool) -> Vec<String> {
        let mut labels = rank_labels(self.shape.ranks, HostInfo::here().cores);
        if self.loss != Loss::Worker {
            labels.push(CLOSED.to_owned());
            labels
                .extend(with_torchrun.then(|| format!("torchrun with {NOT_SHARED}=1, without which no node can join")));
        }
        labels
    }

    /// One job lives through all rounds; in each turn, its last rank is killed.
    fn worker(self, launcher: Launcher, program: Vec<OsString>) -> CaseSide<'a> {
        let name = launcher.name;
        let mut running: Option<BenchJob<'a>> = None;
        let turn = move || {
            let LossCase { shape, rounds, patience, signals, .. } = self;
            let job = match &mut running {
                Some(job) => job,
                none => none.insert(BenchJob::new(&launcher, &program, shape, rounds, patience, signals)?.started()?),
            };
            self.until_ready(job, Mark::START)?;
            let killed = job.kill(shape.ranks - 1)?;
            self.after(job, killed)
        };
        CaseSide { name, turn: Box::new(turn) }
    }

    /// One job lives through all rounds; in each turn, it loses its last node and gets another.
    fn node(self, launcher: Launcher, program: Vec<OsString>) -> CaseSide<'a> {
        let name = launcher.name;
        let mut running: Option<BenchJob<'a>> = None;
        let turn = move || {
            let LossCase { shape, rounds, patience, signals, .. } = self;
            let restarts = RESTARTS * rounds;
            let job = match &mut running {
                Some(job) => job,
                none => {
                    let job = BenchJob::new(&launcher, &program, shape, restarts, patience, signals)?;
                    none.insert(job.started_one_by_one()?)
                }
            };
            self.until_ready(job, Mark::START)?;
            let lost = job.lose_node(shape.agents - 1)?;
            let lost = self.after(job, lost)?;
            self.until_ready(job, Mark::START)?;
            let joined = job.join_node()?;
            let [train, up, _] = self.after(job, joined)?[..] else { anyhow::bail!("ranks do not train") };
            Ok([&lost[..], &[train, up]].concat())
        };
        CaseSide { name, turn: Box::new(turn) }
    }

    /// Each turn has a job of its own, which loses its first agent.
    fn authority(self, launcher: Launcher, program: Vec<OsString>) -> CaseSide<'a> {
        let name = launcher.name;
        let turn = move || {
            let mut job = self.with_authority(&launcher, &program)?;
            let lost = job.lose_node(0)?;
            let [train, up, gone] = self.after(&mut job, lost)?[..] else { anyhow::bail!("ranks do not train") };
            Ok(vec![train, up, job.next_round(lost)?, gone])
        };
        CaseSide { name, turn: Box::new(turn) }
    }

    /// The same with a launcher that ends then.
    fn end(self, launcher: Launcher, program: Vec<OsString>) -> CaseSide<'a> {
        let name = launcher.name;
        let turn = move || {
            let mut job = self.with_authority(&launcher, &program)?;
            let begun = job.lose_node(0)?;
            let ends = job.until_ended()?;
            let seconds = begun.elapsed().as_secs_f64();
            ensure!(ends.iter().all(|end| *end == Exit::Code(1)), "{name} ended with {ends:?}");
            Ok(vec![seconds])
        };
        CaseSide { name, turn: Box::new(turn) }
    }

    fn with_authority(&self, launcher: &Launcher, program: &[OsString]) -> anyhow::Result<BenchJob<'a>> {
        let job = BenchJob::new(launcher, program, self.shape, RESTARTS, self.patience, self.signals)?;
        let mut job = job.with_events().started_one_by_one()?;
        self.until_ready(&mut job, Mark::START)?;
        Ok(job)
    }

    /// Seconds from a change that has just been made until the ranks train, until they are up, and until those of before have gone. Ranks
    /// that do nothing do not train.
    fn after(&self, job: &mut BenchJob<'a>, begun: Instant) -> anyhow::Result<Vec<f64>> {
        let mark = job.mark();
        job.until_gone(mark)?;
        let gone = begun.elapsed().as_secs_f64();
        job.until_up(mark)?;
        let up = begun.elapsed().as_secs_f64();
        if self.work == Work::Idle {
            return Ok(vec![up, gone]);
        }
        let before = self.steps(job, 1)?;
        let seconds = begun.elapsed().as_secs_f64();
        ensure!(before != Some(0), "the ranks found no snapshot, and began again");
        Ok(vec![seconds, up, gone])
    }

    /// Waits until all ranks are there. Ranks with orders to train then train until something happens to them.
    fn until_ready(&self, job: &mut BenchJob<'a>, mark: Mark) -> anyhow::Result<()> {
        job.until_up(mark)?;
        if self.work != Work::Idle {
            // Until there is a snapshot.
            self.steps(job, if self.work == Work::Elastic { 30 } else { 1 })?;
            job.tell(&self.order(job, u32::MAX)?)?;
        }
        Ok(())
    }

    /// Waits until all ranks have taken so many steps together. Returns how many they had taken before, if they go on from snapshots.
    fn steps(&self, job: &mut BenchJob<'_>, steps: u32) -> anyhow::Result<Option<u64>> {
        let answer = job.ask(&self.order(job, steps)?)?;
        if self.work == Work::Elastic {
            let resumed: ResumedAnswer =
                serde_json::from_str(&answer).with_context(|| format!("rank 0 answered {answer:?}"))?;
            return Ok(Some(resumed.from));
        }
        serde_json::from_str::<StepAnswer>(&answer)?;
        Ok(None)
    }

    /// The order to take so many steps.
    fn order(&self, job: &BenchJob<'_>, steps: u32) -> serde_json::Result<String> {
        let batch = 8;
        serde_json::to_string(&match self.work {
            Work::Elastic => {
                let (folder, virtual_ranks) = (job.snapshots(), VIRTUAL_RANKS);
                Order::Resumed(ResumedOrder { folder, virtual_ranks, batch, steps })
            }
            _ => Order::Step(StepOrder { model: Model::Mlp, batch, steps }),
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: RecoveryOptions,
    }

    fn cases(words: &[&str]) -> Result<Vec<String>, String> {
        let line = Line::parse_from([&["test"], words].concat());
        let shapes = line.options.shapes().map_err(|error| error.to_string())?;
        Ok(shapes.iter().map(|(loss, work, shape)| format!("{loss:?} {work:?} {shape}")).collect())
    }

    #[test]
    fn a_node_is_lost_only_by_ranks_that_train() {
        let expected =
            ["Worker Idle 4 ranks, 1 agent", "Worker Train 4 ranks, 1 agent", "Node Train 4 ranks, 2 agents"];
        assert_eq!(cases(&["--ranks=4"]).unwrap(), expected);
        assert_eq!(
            cases(&["--ranks=4", "--lose=node", "--work=idle", "--nodes=4"]).unwrap(),
            ["Node Train 4 ranks, 4 agents"]
        );
        let authority = ["--ranks=3", "--lose=authority", "--nodes=3"];
        assert_eq!(cases(&authority).unwrap(), ["Authority Train 3 ranks, 3 agents"]);
        let error = cases(&["--ranks=4", "--nodes=3"]).unwrap_err();
        assert!(error.starts_with("3 agents cannot share 4 ranks evenly"), "{error}");
    }
}
