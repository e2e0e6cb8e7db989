//! `lockstep bench parallel`: a training step of a model that is divided over the ranks, by the optimizer's states, by units, within
//! layers, by the sequence or by experts: its time, what a rank sends and what it holds.
//!
//! In each turn all sides start from the same weights and take the same steps, so their losses must be equal. Leaves out GPUs: the kernel
//! does not see what NCCL sends.

use std::cell::OnceCell;
use std::rc::Rc;

use anyhow::ensure;
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use lockstep_rank_messages::bench::{Order, ParallelAnswer, ParallelOrder, Scheme};

use crate::exit::Code;
use crate::machine::rank_labels;
use crate::ranks::{Backends, Program, Ranks};
use crate::report::{HostInfo, count};
use crate::results::Unit::{Bytes, Seconds};
use crate::rounds::{BenchCase, CaseSide, CommonOptions, Plan, Quantity};

/// Rounding differs between kernels, and Adam divides a gradient by its own size.
const TOLERANCE: f64 = 1e-4;

fn scheme() -> impl TypedValueParser<Value = Scheme> {
    let value = |scheme: Scheme| PossibleValue::new(scheme.name()).help(meaning(scheme));
    PossibleValuesParser::new(Scheme::ALL.map(value))
        .try_map(|name| Scheme::ALL.into_iter().find(|scheme| scheme.name() == name).ok_or("no such scheme"))
}

fn meaning(scheme: Scheme) -> &'static str {
    match scheme {
        Scheme::Zero => "DDP, with the optimizer's states divided; in Python ZeroRedundancyOptimizer",
        Scheme::Sharded => "Parameters, gradients and states divided, block by block; in Python fully_shard (FSDP2)",
        Scheme::Tensor => "Each layer divided, by columns, then by rows; in Python torch.distributed.tensor.parallel",
        Scheme::Context => {
            "The sequence divided: attention, with a ring of keys and values; in Python an all-gather of them, since PyTorch's \
             context_parallel has no kernel for CPUs"
        }
        Scheme::Expert => "Two experts of each block on a rank; in Python an all-to-all by hand",
    }
}

/// Measure a step of a model that is divided over the ranks: its time, the bytes that a rank sends, and the memory that it takes
#[derive(Args)]
pub(crate) struct ParallelOptions {
    /// Schemes: a list
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', default_values = Scheme::ALL.map(Scheme::name), value_parser = scheme())]
    schemes: Vec<Scheme>,
    /// Ranks: a list; each is a process of one thread on this machine
    #[arg(long, value_name = "COUNT,…", value_delimiter = ',', default_values_t = [2], value_parser = clap::value_parser!(u16).range(2..=64))]
    ranks: Vec<u16>,
    /// Blocks of the model, each of two layers
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=256))]
    blocks: u32,
    /// Inputs and outputs of a block; a multiple of the ranks
    #[arg(long, value_name = "COUNT", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=8192))]
    features: u32,
    /// Rows of a rank's batch, or of its part of the sequence; even for context
    #[arg(long, value_name = "COUNT", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    rows: u32,
    /// Steps in a turn, after two that are not timed
    #[arg(long, value_name = "COUNT", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    steps: u32,
    #[command(flatten)]
    backends: Backends,
    #[command(flatten)]
    common: CommonOptions,
}

impl ParallelOptions {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        let (cores, patience) = (HostInfo::here().cores, self.common.patience());
        self.common.exec("parallel", |signals| {
            let theirs = "Python's divided training";
            let (programs, not_measured) =
                self.backends.sides(&self.common, theirs, Program::in_python_by_optimizer)?;
            let mut plan = Plan { cases: vec![], not_measured };
            for ranks in self.ranks.iter().copied().map(usize::from) {
                // A scheme's ranks are its own, so that the memory is that of one scheme.
                plan.cases.extend(self.schemes.iter().map(|scheme| {
                    let jobs = Ranks::of_each(&programs, ranks, patience, signals);
                    let (features, blocks, rows, steps) = (self.features, self.blocks, self.rows, self.steps);
                    let order = ParallelOrder { scheme: *scheme, features, blocks, rows, steps };
                    BenchCase {
                        name: case(order, ranks),
                        quantities: quantities(),
                        labels: rank_labels(ranks, cores),
                        sides: sides(&jobs, order),
                    }
                }));
            }
            Ok(plan)
        })
    }
}

/// The name has all that the numbers depend on, so that only the same work is compared.
fn case(order: ParallelOrder, ranks: usize) -> String {
    let ParallelOrder { scheme, features, blocks, rows, .. } = order;
    let (ranks, blocks, rows) = (count(ranks, "rank"), count(blocks as usize, "block"), count(rows as usize, "row"));
    format!("{}, {ranks}, {blocks} of {features} features, {rows} each", scheme.name())
}

fn quantities() -> Vec<Quantity> {
    vec![
        Quantity::new("step", Seconds),
        Quantity::new("a rank sends in a step", Bytes),
        Quantity::new("a rank's tensors between steps", Bytes),
        Quantity::new("peak of a rank's resident memory", Bytes),
    ]
}

fn values(answer: &ParallelAnswer) -> Vec<f64> {
    vec![answer.step, answer.sent, answer.kept, answer.peak]
}

/// The losses that all sides of a case must have.
#[derive(Debug, Default)]
struct SameLosses(OnceCell<Vec<f64>>);

impl SameLosses {
    fn check(&self, losses: &[f64]) -> anyhow::Result<()> {
        let first = self.0.get_or_init(|| losses.to_vec());
        ensure!(losses.len() == first.len(), "{} losses, but {} on the first side", losses.len(), first.len());
        for (step, (found, first)) in losses.iter().zip(first).enumerate() {
            let apart = (found - first).abs() / first.abs();
            ensure!(
                apart <= TOLERANCE,
                "the loss of step {step} is {found}, but {first} on the first side: not the same training"
            );
        }
        Ok(())
    }
}

fn sides<'a>(jobs: &[Rc<Ranks<'a>>], order: ParallelOrder) -> Vec<CaseSide<'a>> {
    let same = Rc::new(SameLosses::default());
    let side = |job: &Rc<Ranks<'a>>| {
        let (job, same) = (Rc::clone(job), Rc::clone(&same));
        let name = job.name;
        let turn = move || {
            let answer: ParallelAnswer = job.ask(&Order::Parallel(order))?;
            same.check(&answer.losses)?;
            Ok(values(&answer))
        };
        CaseSide { name, turn: Box::new(turn) }
    };
    jobs.iter().map(side).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_quantity_has_its_value() {
        let answer = ParallelAnswer { step: 0.1, losses: vec![1.0], sent: 2.0, kept: 3.0, peak: 4.0 };
        assert_eq!((values(&answer).len(), values(&answer)[1]), (quantities().len(), 2.0));
    }

    #[test]
    fn sides_with_other_losses_did_not_train_the_same() {
        let same = SameLosses::default();
        same.check(&[2.0, 1.0]).unwrap();
        same.check(&[2.0, 1.000_05]).unwrap();
        let error = same.check(&[2.0, 1.1]).unwrap_err().to_string();
        assert_eq!(error, "the loss of step 1 is 1.1, but 1 on the first side: not the same training");
        assert!(same.check(&[2.0]).is_err() && same.check(&[2.0, f64::NAN]).is_err());
    }
}
