//! `lockstep bench scaling`: how a training step under DDP scales with the number of ranks, for the same work and for work that grows.
//!
//! Strong scaling: all ranks together have the samples that one rank had. Weak: each has as many as one rank had. The tables of speed-up
//! and of what was fitted are made from the results ([`crate::speed_up`]), so that a file of results has them too.

use std::collections::BTreeSet;
use std::rc::Rc;

use clap::Args;
use lockstep_contract::scheduler::Allocation;
use lockstep_rank_messages::bench::{Model, StepAnswer, StepOrder};

use crate::ddp::{case, exposed, model, programs, sides_of};
use crate::exit::{Code, Refused};
use crate::launcher::{Launcher, Shape};
use crate::machine::rank_labels;
use crate::nodes::{ALONE, BUCKET, EXPOSED, Mode, NodeSpan, Nodes, ONE, STEP, ScalingPoint, numbers};
use crate::ranks::{DeviceAndBackends, Ranks};
use crate::report::{HostInfo, count};
use crate::results::Unit::{Bytes, Seconds};
use crate::rounds::{BenchCase, CaseSide, CommonOptions, Plan, Quantity};

/// Measure how a step scales, strongly and weakly: speed-up, efficiency, and the serial part and the link that fit them
#[derive(Args)]
pub(crate) struct ScalingOptions {
    /// Models: a list
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', default_values = ["mlp", "resnet"], value_parser = model())]
    models: Vec<Model>,
    /// Ranks: a list with 1; each is a process of one thread. By default 1, 2, 4, … up to this machine's cores, and 2 at least; with
    /// --nodes those of each node, by default 1
    #[arg(long, value_name = "COUNT,…", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=64))]
    ranks: Vec<u16>,
    /// Nodes of the Slurm job in whose script the bench runs: a list with 1; srun starts the ranks. By default 1, 2, 4, … and all
    #[arg(long, value_name = "COUNT,…", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=4096))]
    nodes: Vec<u16>,
    /// What grows with the ranks: a list
    #[arg(long, value_name = "MODE,…", value_delimiter = ',', default_values = ["strong", "weak"])]
    modes: Vec<Mode>,
    /// Samples of a rank: of each in weak scaling, of each of the most ranks in strong scaling
    #[arg(long, value_name = "COUNT", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    batch: u32,
    /// Steps with communication, and as many without, in a turn
    #[arg(long, value_name = "COUNT", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    steps: u32,
    #[command(flatten)]
    on: DeviceAndBackends,
    #[command(flatten)]
    common: CommonOptions,
}

impl ScalingOptions {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        let (cores, patience) = (HostInfo::here().cores, self.common.patience());
        let job = Allocation::batch_job();
        let nodes = Nodes::of_job(job.as_ref(), patience)?;
        let points = self.points(nodes.as_ref(), cores)?;
        let samples = shares(&points.iter().map(|(ranks, _)| *ranks).collect::<Vec<_>>(), self.batch)?;
        self.common.exec("scaling", |signals| {
            let (programs, mut not_measured) = programs(&self.on, &self.common)?;
            not_measured.extend(job.as_ref().filter(|_| nodes.is_none()).and_then(other_nodes));
            let mut plan = Plan { cases: vec![], not_measured };
            for (&(ranks, span), &share) in points.iter().zip(&samples) {
                let (launcher, agents) = match (&nodes, span) {
                    (Some(nodes), Some(span)) => (nodes.launcher(span.nodes)?, span.nodes),
                    _ => (Launcher::own(), 1),
                };
                let shape = Shape { ranks, agents };
                let under = |program| Ranks::under(&launcher, program, shape, patience, signals);
                let jobs: Vec<_> = programs.iter().map(under).collect();
                let both = self.models.iter().flat_map(|model| self.modes.iter().map(move |mode| (*model, *mode)));
                for (model, mode) in both {
                    let batch = if mode == Mode::Strong { share } else { self.batch };
                    let order = StepOrder { model, batch, steps: self.steps };
                    let place = ScalingPoint { mode, model: model.name().to_owned(), ranks, span };
                    let on = span.map_or_else(String::new, |span| format!(" on {}", count(span.nodes, "node")));
                    let mut labels = rank_labels(ranks, span.map_or(cores, |span| span.cores));
                    labels.extend(span.iter().flat_map(NodeSpan::labels));
                    plan.cases.push(BenchCase {
                        name: format!(
                            "{} scaling of {}{on}{}",
                            mode.name(),
                            case(model, ranks, batch),
                            self.on.suffix()
                        ),
                        quantities: quantities(&place),
                        labels,
                        sides: sides(&jobs, order, ranks),
                    });
                }
            }
            Ok(plan)
        })
    }

    /// Numbers of ranks, in a job of several nodes with these nodes.
    fn points(&self, nodes: Option<&Nodes>, cores: usize) -> Result<Vec<(usize, Option<NodeSpan>)>, Refused> {
        let numbers = numbers(&self.nodes, nodes.map(Nodes::count))?;
        let Some(nodes) = nodes else {
            return Ok(ranks(&self.ranks, cores)?.into_iter().map(|ranks| (ranks, None)).collect());
        };
        let of_each: BTreeSet<usize> = self.ranks.iter().copied().map(usize::from).chain([1]).collect();
        let points = numbers
            .iter()
            .flat_map(|number| of_each.iter().map(move |each| (number * each, Some(nodes.span(*number)))));
        Ok(points.collect())
    }
}

/// In ascending order, each once.
fn ranks(asked: &[u16], cores: usize) -> Result<Vec<usize>, Refused> {
    let doubled = std::iter::successors(Some(1), |ranks| Some(2 * ranks)).take_while(|ranks| *ranks <= cores.max(2));
    let mut ranks: Vec<usize> = asked.iter().copied().map(usize::from).collect();
    if ranks.is_empty() {
        ranks = doubled.collect();
    }
    ranks.sort_unstable();
    ranks.dedup();
    let alone = ranks.first() == Some(&1) && ranks.len() > 1;
    alone
        .then_some(ranks)
        .ok_or_else(|| Refused("scaling compares with one rank: --ranks needs 1 and others".to_owned()))
}

/// The samples of each rank in strong scaling, where the most ranks have `batch` each.
fn shares(ranks: &[usize], batch: u32) -> Result<Vec<u32>, Refused> {
    let most = ranks.iter().copied().max().unwrap_or(1) as u32;
    let share = |ranks: &usize| match (batch * most) % *ranks as u32 {
        0 => Ok(batch * most / *ranks as u32),
        _ => {
            Err(Refused(format!("{ranks} ranks cannot share {} samples evenly: choose another --batch", batch * most)))
        }
    };
    ranks.iter().map(share).collect()
}

/// What to do in a job of many nodes.
fn other_nodes(job: &Allocation) -> Option<String> {
    let nodes = job.nodes.0;
    (nodes > 1).then(|| {
        format!(
            "{}: it has {nodes} nodes, and the ranks are on one, since this bench starts them elsewhere under Slurm only; measure the links \
             between nodes with lab 05 (`{}`), and compute the step with `lockstep bench predict`",
            job.title(),
            job.one_agent_per_node()
        )
    })
}

fn quantities(place: &ScalingPoint) -> Vec<Quantity> {
    let quantity = |name: &str, unit| Quantity { place: Some(place.clone()), ..Quantity::new(name, unit) };
    let exchange =
        [quantity(EXPOSED, Seconds), quantity(ALONE, Seconds), quantity(ONE, Seconds), quantity(BUCKET, Bytes)];
    let step = std::iter::once(quantity(STEP, Seconds));
    if place.ranks > 1 { step.chain(exchange).collect() } else { step.collect() }
}

fn sides<'a>(jobs: &[Rc<Ranks<'a>>], order: StepOrder, ranks: usize) -> Vec<CaseSide<'a>> {
    sides_of(jobs, order, move |step: &StepAnswer, _| {
        let bucket = step.bytes as f64 / f64::from(step.buckets);
        let exchange = [exposed(step), step.all_reduces, step.one_all_reduce, bucket];
        if ranks > 1 { [&[step.step][..], &exchange].concat() } else { vec![step.step] }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_of_many_nodes_hears_that_the_ranks_are_on_one() {
        use lockstep_contract::scheduler::Read;
        let job = |nodes: &str| {
            let variable = |name: &str| match name {
                "SLURM_JOB_ID" => Some("17".to_owned()),
                "SLURM_JOB_NUM_NODES" | "SLURM_NNODES" => Some(nodes.to_owned()),
                _ => None,
            };
            let file = |_: &str| Err(std::io::ErrorKind::NotFound.into());
            Allocation::find(&Read { variable: &variable, file: &file }, None).unwrap().unwrap()
        };
        assert_eq!(other_nodes(&job("1")), None);
        let text = other_nodes(&job("4")).unwrap();
        assert!(text.contains("has 4 nodes") && text.contains("`srun --nodes=4 --ntasks-per-node=1 "), "{text}");
    }

    #[test]
    fn needs_one_rank_and_batches_that_divide() {
        assert_eq!(ranks(&[], 1).unwrap(), [1, 2]);
        assert_eq!(ranks(&[], 6).unwrap(), [1, 2, 4]);
        assert_eq!(ranks(&[4, 1, 2, 4], 2).unwrap(), [1, 2, 4]);
        for bad in [&[2, 4][..], &[1]] {
            assert!(ranks(bad, 8).unwrap_err().to_string().starts_with("scaling compares with one rank"));
        }
        assert_eq!(shares(&[1, 2, 4], 64).unwrap(), [256, 128, 64]);
        let error = shares(&[1, 3, 4], 1).unwrap_err().to_string();
        assert_eq!(error, "3 ranks cannot share 4 samples evenly: choose another --batch");
    }
}
