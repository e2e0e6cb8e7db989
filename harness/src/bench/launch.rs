//! `lockstep measure launch`: how long a launcher takes to start a job of ranks that do nothing, and to end it; and what its agents
//! take in memory meanwhile.
//!
//! `lockstep measure recovery`: a running job loses a worker, or a node that another replaces later; how long until the others are
//! stopped, until all run again, and until all train again.

use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use lockstep_contract::bench::{Model, Order, StepAnswer, StepOrder};
use lockstep_process::Signals;

use crate::bench::connection::Mark;
use crate::bench::job::BenchJob;
use crate::bench::launcher::{Launcher, NOT_SHARED, Shape, idle_rank};
use crate::bench::machine::rank_labels;
use crate::bench::ranks::Program;
use crate::bench::results::Unit;
use crate::bench::rounds::{BenchCase, CaseSide, CommonOptions, Plan, Quantity};
use crate::exit::{Code, Refused};
use crate::report::HostInfo;

/// A turn starts a job and ends it when all ranks are there. So `no-op job` is the time in which a launcher starts
/// and ends a job whose ranks do nothing, without the time for reading the agents' memory.
fn launch_quantities() -> Vec<Quantity> {
    vec![
        Quantity::new("no-op job", Unit::Seconds),
        Quantity::new("all ranks up", Unit::Seconds),
        Quantity::new("memory of an agent", Unit::Bytes),
    ]
}

/// Start and end jobs whose ranks only connect to the job's store; show times and the agents' memory
#[derive(Args)]
pub(crate) struct LaunchOptions {
    /// Ranks of a job: a list
    #[arg(long, value_name = "COUNT,…", value_delimiter = ',', default_values_t = [2, 8], value_parser = clap::value_parser!(u16).range(1..=4096))]
    ranks: Vec<u16>,
    /// Agents that share the ranks evenly: a list; all on this machine
    #[arg(long, value_name = "COUNT,…", value_delimiter = ',', default_values_t = [1], value_parser = clap::value_parser!(u16).range(1..=256))]
    agents: Vec<u16>,
    #[command(flatten)]
    common: CommonOptions,
}

impl LaunchOptions {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        let shapes = shapes(&self.ranks, &self.agents)?;
        let patience = self.common.patience();
        let cores = HostInfo::here().cores;
        self.common.exec("launch", |signals| {
            let (launchers, not_measured) = launchers(&self.common)?;
            let case = |shape: Shape| BenchCase {
                name: shape.to_string(),
                quantities: launch_quantities(),
                labels: rank_labels(shape.ranks, cores),
                sides: launchers.iter().map(|launcher| side(launcher.clone(), shape, patience, signals)).collect(),
            };
            Ok(Plan { cases: shapes.iter().copied().map(case).collect(), not_measured })
        })
    }
}

/// Ours and the peers that were asked for; and which of those are missing.
pub(crate) fn launchers(common: &CommonOptions) -> anyhow::Result<(Vec<Launcher>, Vec<String>)> {
    common.sides("torchrun", vec![Launcher::own()], |python| Ok(vec![Launcher::torchrun(&python)]))
}

/// Every number of agents with every number of ranks.
fn shapes(ranks: &[u16], agents: &[u16]) -> Result<Vec<Shape>, Refused> {
    let all = agents.iter().flat_map(|agents| ranks.iter().map(|ranks| (usize::from(*ranks), usize::from(*agents))));
    all.map(|(ranks, agents)| Shape::of(ranks, agents)).collect()
}

fn side<'a>(launcher: Launcher, shape: Shape, patience: std::time::Duration, signals: &'a Signals) -> CaseSide<'a> {
    let name = launcher.name;
    let turn = move || {
        let begun = Instant::now();
        let mut job = BenchJob::new(&launcher, &idle_rank(), shape, 0, patience, signals)?.started()?;
        job.until_up(Mark::START)?;
        let up = begun.elapsed();
        let memory = job.memory();
        let ending = Instant::now();
        job.finish()?;
        Ok(vec![(up + ending.elapsed()).as_secs_f64(), up.as_secs_f64(), memory])
    };
    CaseSide { name, turn: Box::new(turn) }
}

/// A job of these loses nodes at once; a machine without power closes no connection.
const CLOSED: &str =
    "the kernel closes a killed node's connections; one without power is noticed by its missing heartbeats";
/// In a round, each agent restarts its workers once when a node is lost, and perhaps once more when another joins.
const RESTARTS: usize = 4;

/// What a job loses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Loss {
    /// A rank, as by the kernel's OOM killer
    Worker,
    /// An agent with all its ranks; then another joins. Needs ranks that train
    Node,
}

/// What ranks do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Work {
    /// Nothing: they only connect to their job's store
    Idle,
    /// DDP: they import libtorch, form a process group and take steps
    Train,
}

/// Take a rank or a node from a running job, and show how long it takes until all ranks run and train again
#[derive(Args)]
pub(crate) struct RecoveryOptions {
    /// Ranks of a job: a list
    #[arg(long, value_name = "COUNT,…", value_delimiter = ',', default_values_t = [2, 8], value_parser = clap::value_parser!(u16).range(2..=4096))]
    ranks: Vec<u16>,
    /// What is lost: a list
    #[arg(long, value_name = "WHAT,…", value_delimiter = ',', default_values = ["worker", "node"])]
    lose: Vec<Loss>,
    /// What the ranks do of a job that loses a worker: a list
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

/// One case, for all sides.
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
            let against_torchrun = launchers.len() > 1;
            let trainer = Program::own();
            let case = |(loss, work, shape)| LossCase { loss, work, shape, rounds, patience, signals };
            let mut cases = Vec::new();
            for case in shapes.into_iter().map(case) {
                let program = match (case.work, &trainer) {
                    (Work::Idle, _) => idle_rank(),
                    (Work::Train, Ok(program)) => program.words.clone(),
                    (Work::Train, Err(error)) => {
                        not_measured.push(format!("{}: {error:#}", case.name()));
                        continue;
                    }
                };
                let sides = launchers.iter().map(|launcher| match case.loss {
                    Loss::Worker => case.worker(launcher.clone(), program.clone()),
                    Loss::Node => case.node(launcher.clone().elastic(self.rdzv_conf.clone()), program.clone()),
                });
                let sides = sides.collect();
                cases.push(BenchCase {
                    name: case.name(),
                    quantities: case.quantities(),
                    labels: case.labels(against_torchrun),
                    sides,
                });
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
                Loss::Node => (&[Work::Train][..], usize::from(self.nodes)),
            };
            for ranks in self.ranks.iter().copied().map(usize::from) {
                let shape = Shape::of(ranks, agents)?;
                shapes.extend(works.iter().map(|work| (*loss, *work, shape)));
            }
        }
        Ok(shapes)
    }
}

impl<'a> LossCase<'a> {
    fn name(&self) -> String {
        let work = if self.work == Work::Train { ", training" } else { "" };
        let loss = if self.loss == Loss::Node { ": one is lost, then another joins" } else { "" };
        format!("{}{work}{loss}", self.shape)
    }

    fn quantities(&self) -> Vec<Quantity> {
        let names: &[&str] = match (self.loss, self.work) {
            (Loss::Worker, Work::Idle) => &["all ranks up again", "survivors stopped"],
            (Loss::Worker, Work::Train) => &["all ranks train again", "all ranks up again", "survivors stopped"],
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

    fn labels(&self, against_torchrun: bool) -> Vec<String> {
        let mut labels = rank_labels(self.shape.ranks, HostInfo::here().cores);
        if self.loss == Loss::Node {
            labels.push(CLOSED.to_owned());
            labels.extend(
                against_torchrun.then(|| format!("torchrun with {NOT_SHARED}=1, without which no node can join")),
            );
        }
        labels
    }

    /// One job lives through all rounds; in each turn, its last rank is killed.
    fn worker(self, launcher: Launcher, program: Vec<std::ffi::OsString>) -> CaseSide<'a> {
        let name = launcher.name;
        let mut running: Option<BenchJob<'a>> = None;
        let turn = move || {
            let LossCase { shape, rounds, patience, signals, .. } = self;
            let job = match &mut running {
                Some(job) => job,
                none => none.insert(BenchJob::new(&launcher, &program, shape, rounds, patience, signals)?.started()?),
            };
            self.until_ready(job, Mark::START)?;
            self.after(job, |job| job.kill(shape.ranks - 1))
        };
        CaseSide { name, turn: Box::new(turn) }
    }

    /// One job lives through all rounds; in each turn, it loses its last node and gets another.
    fn node(self, launcher: Launcher, program: Vec<std::ffi::OsString>) -> CaseSide<'a> {
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
            let lost = self.after(job, BenchJob::lose_node)?;
            self.until_ready(job, Mark::START)?;
            let [train, up, _] = self.after(job, BenchJob::join_node)?[..] else { anyhow::bail!("ranks do not train") };
            Ok([&lost[..], &[train, up]].concat())
        };
        CaseSide { name, turn: Box::new(turn) }
    }

    /// Seconds until the ranks train, until they are up, and until the earlier ones have gone. Ranks that do nothing do not train.
    fn after(
        &self,
        job: &mut BenchJob<'a>,
        change: impl FnOnce(&mut BenchJob<'a>) -> anyhow::Result<Instant>,
    ) -> anyhow::Result<Vec<f64>> {
        let mark = job.mark();
        let begun = change(job)?;
        job.until_gone(mark)?;
        let gone = begun.elapsed().as_secs_f64();
        job.until_up(mark)?;
        let up = begun.elapsed().as_secs_f64();
        if self.work == Work::Idle {
            return Ok(vec![up, gone]);
        }
        one_step(job)?;
        Ok(vec![begun.elapsed().as_secs_f64(), up, gone])
    }

    /// Waits until all ranks are there. Ranks with orders to train then train until something happens to them.
    fn until_ready(&self, job: &mut BenchJob<'a>, mark: Mark) -> anyhow::Result<()> {
        job.until_up(mark)?;
        if self.work == Work::Train {
            one_step(job)?;
            job.tell(&steps(u32::MAX)?)?;
        }
        Ok(())
    }
}

/// Waits until all ranks have taken a step together.
fn one_step(job: &mut BenchJob<'_>) -> anyhow::Result<()> {
    let answer = job.ask(&steps(1)?)?;
    serde_json::from_str::<StepAnswer>(&answer)?;
    Ok(())
}

/// The order to take this many steps.
fn steps(steps: u32) -> serde_json::Result<String> {
    serde_json::to_string(&Order::Step(StepOrder { model: Model::Mlp, batch: 8, steps }))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn combines_ranks_and_agents_and_refuses_what_does_not_divide() {
        let shape = |ranks, agents| Shape { ranks, agents };
        let found = shapes(&[2, 8], &[1, 2]).unwrap();
        assert_eq!(found, [shape(2, 1), shape(8, 1), shape(2, 2), shape(8, 2)]);
        let error = shapes(&[2], &[16]).unwrap_err().to_string();
        assert_eq!(error, "16 agents cannot share 2 ranks evenly: choose multiples for --ranks");
    }

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
        let error = cases(&["--ranks=4", "--nodes=3"]).unwrap_err();
        assert!(error.starts_with("3 agents cannot share 4 ranks evenly"), "{error}");
    }
}
