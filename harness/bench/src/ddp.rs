//! `lockstep bench ddp`: a training step under DDP and its parts, and how much of the communication the backward pass hides.
//!
//! Each turn alternates steps with and without communication (`no_sync`) of the same model. The backward pass with it minus the one
//! without is the communication that is exposed: a rank waits for it, or loses the time to the threads that send. The same buckets are
//! also reduced alone. The overlap is the part of that time that the step does not wait for.

use std::cell::OnceCell;
use std::rc::Rc;

use anyhow::{Context, ensure};
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use lockstep_paths::temporary_folder;
use lockstep_rank_messages::bench::{Model, Order, StepAnswer, StepOrder};

use crate::exit::Code;
use crate::machine::rank_labels;
use crate::ranks::{DeviceAndBackends, Program, Ranks};
use crate::report::{HostInfo, count};
use crate::results::Unit::{Bytes, Seconds, Share};
use crate::rounds::{BenchCase, CaseSide, CommonOptions, Plan, Quantity};

/// Rounding differs between kernels.
const TOLERANCE: f64 = 1e-4;

/// The value of an option that names models.
pub(super) fn model() -> impl TypedValueParser<Value = Model> {
    let value = |model: Model| PossibleValue::new(model.name()).help(network(model));
    PossibleValuesParser::new(Model::ALL.map(value))
        .try_map(|name| Model::ALL.into_iter().find(|model| model.name() == name).ok_or("no such model"))
}

fn network(model: Model) -> &'static str {
    match model {
        Model::Mlp => "Linear layers 784-1024-1024-10: 1.86 million parameters",
        Model::Resnet => "ResNet-18 of width 16 on pictures of 32 x 32: 0.70 million parameters, and batch norms",
    }
}

/// Measure a step under DDP: forward, backward, optimizer, and the communication that the backward pass does not hide
#[derive(Args)]
pub(crate) struct DdpOptions {
    /// Models: a list
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', default_values = ["mlp", "resnet"], value_parser = model())]
    models: Vec<Model>,
    /// Ranks: a list; each is a process of one thread on this machine
    #[arg(long, value_name = "COUNT,…", value_delimiter = ',', default_values_t = [2], value_parser = clap::value_parser!(u16).range(1..=64))]
    ranks: Vec<u16>,
    /// Samples in a rank's batch
    #[arg(long, value_name = "COUNT", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    batch: u32,
    /// Threes of steps in a turn: one that is not timed, one with communication, one without
    #[arg(long, value_name = "COUNT", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    steps: u32,
    /// Add a side whose ranks are recorded, as by `lockstep run --record`: what that costs
    #[arg(long)]
    recorded: bool,
    #[command(flatten)]
    on: DeviceAndBackends,
    #[command(flatten)]
    common: CommonOptions,
}

impl DdpOptions {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        let recording = self.recorded.then(|| tempfile::tempdir_in(temporary_folder())).transpose();
        let recording = recording.context("cannot make a folder for a recording")?;
        let (cores, patience) = (HostInfo::here().cores, self.common.patience());
        self.common.exec("ddp", |signals| {
            let (mut programs, not_measured) = programs(&self.on, &self.common)?;
            if let (Some(folder), Some(first)) = (&recording, programs.first()) {
                programs.insert(1, first.recorded("lockstep-recorded", folder.path()));
            }
            let (mut plan, on_gpus) = (Plan { cases: vec![], not_measured }, self.on.on_gpus());
            for ranks in self.ranks.iter().copied().map(usize::from) {
                let jobs = Ranks::of_each(&programs, ranks, patience, signals);
                plan.cases.extend(self.models.iter().map(|model| {
                    let order = StepOrder { model: *model, batch: self.batch, steps: self.steps };
                    BenchCase {
                        name: case(*model, ranks, self.batch) + self.on.suffix(),
                        quantities: quantities(ranks, on_gpus),
                        labels: rank_labels(ranks, cores),
                        sides: sides_of(&jobs, order, move |step, time| values(step, ranks, on_gpus, time)),
                    }
                }));
            }
            Ok(plan)
        })
    }
}

/// Ours, and Python's.
pub(super) fn programs(on: &DeviceAndBackends, common: &CommonOptions) -> anyhow::Result<(Vec<Program>, Vec<String>)> {
    on.sides(common, "Python's DDP", Program::in_python_by_optimizer)
}

fn quantities(ranks: usize, on_gpus: bool) -> Vec<Quantity> {
    let parts = ["step", "forward", "backward", "optimizer", "processor time of the turn"];
    let exchange = [
        Quantity::new("exposed communication", Seconds),
        Quantity::new("all-reduces alone", Seconds),
        Quantity::new("overlap", Share),
    ];
    let parts = parts.map(|name| Quantity::new(name, Seconds)).into_iter();
    let exchange = exchange.into_iter().filter(|_| ranks > 1);
    parts.chain(exchange).chain(on_gpus.then(|| Quantity::new("peak of a GPU's memory", Bytes))).collect()
}

/// The name has all that the time depends on, so that only the same work is compared.
pub(super) fn case(model: Model, ranks: usize, batch: u32) -> String {
    format!("{}, {}, {} each", model.name(), count(ranks, "rank"), count(batch as usize, "sample"))
}

/// Seconds of communication that the backward pass does not hide: 0 if noise makes the pass without it the longer one.
pub(super) fn exposed(step: &StepAnswer) -> f64 {
    (step.backward - step.backward_alone).max(0.0)
}

/// The part of the communication that does not lengthen the step: 0 if the step loses more time than the all-reduces
/// alone take, for example to threads that send.
fn overlap(step: &StepAnswer) -> f64 {
    (1.0 - exposed(step) / step.all_reduces).max(0.0)
}

/// The values of [`quantities`], in their order.
fn values(step: &StepAnswer, ranks: usize, on_gpus: bool, processor_time: f64) -> Vec<f64> {
    let parts = [step.step, step.forward, step.backward, step.optimizer, processor_time].into_iter();
    let exchange = [exposed(step), step.all_reduces, overlap(step)].into_iter().filter(|_| ranks > 1);
    parts.chain(exchange).chain(on_gpus.then(|| step.peak.unwrap_or_default() as f64)).collect()
}

/// The loss and the gradient's norm that all sides of a case must have.
#[derive(Debug, Default)]
struct SameWork(OnceCell<[f64; 2]>);

impl SameWork {
    fn check(&self, step: &StepAnswer) -> anyhow::Result<()> {
        let found = [step.loss, step.gradient];
        let first = self.0.get_or_init(|| found);
        for (what, found, first) in [("loss", found[0], first[0]), ("norm of the gradient", found[1], first[1])] {
            let apart = (found - first).abs() / first.abs();
            ensure!(apart <= TOLERANCE, "the {what} is {found}, but {first} on the first side: not the same work");
        }
        Ok(())
    }
}

/// A side for each job, all with the same work; `values` computes their values from a step and a turn's processor time.
pub(super) fn sides_of<'a>(
    jobs: &[Rc<Ranks<'a>>],
    order: StepOrder,
    values: impl Fn(&StepAnswer, f64) -> Vec<f64> + Clone + 'a,
) -> Vec<CaseSide<'a>> {
    let same = Rc::new(SameWork::default());
    let side = |job: &Rc<Ranks<'a>>| {
        let (job, same, values) = (Rc::clone(job), Rc::clone(&same), values.clone());
        let name = job.name;
        let mut ready = false;
        let turn = move || {
            if !std::mem::replace(&mut ready, true) {
                // The ranks make the model, which does not count as a step.
                job.ask::<StepAnswer>(&Order::Step(StepOrder { steps: 1, ..order }))?;
            }
            let before = job.processor_time();
            let step: StepAnswer = job.ask(&Order::Step(order))?;
            same.check(&step)?;
            Ok(values(&step, job.processor_time() - before))
        };
        CaseSide { name, turn: Box::new(turn) }
    };
    jobs.iter().map(side).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(backward: f64, loss: f64) -> StepAnswer {
        StepAnswer {
            step: 0.1,
            forward: 0.03,
            backward,
            optimizer: 0.01,
            backward_alone: 0.05,
            all_reduces: 0.02,
            one_all_reduce: 0.015,
            bytes: 8,
            buckets: 2,
            loss,
            gradient: 1.0,
            peak: Some(1 << 20),
        }
    }

    #[test]
    fn overlap_is_what_the_backward_pass_hides() {
        let all = |backward| overlap(&step(backward, 1.0));
        assert!((all(0.05) - 1.0).abs() < 1e-12 && all(0.07).abs() < 1e-12 && (all(0.06) - 0.5).abs() < 1e-12);
        // More than all of it, or less than nothing, cannot be a part of the all-reduces.
        assert!(all(0.09).abs() < 1e-12 && (all(0.04) - 1.0).abs() < 1e-12);
        for (ranks, on_gpus) in [(1, false), (2, false), (1, true), (2, true)] {
            assert_eq!(values(&step(0.06, 1.0), ranks, on_gpus, 1.0).len(), quantities(ranks, on_gpus).len());
        }
    }

    #[test]
    fn sides_with_another_loss_did_not_do_the_same_work() {
        let same = SameWork::default();
        same.check(&step(0.06, 2.0)).unwrap();
        same.check(&step(0.07, 2.000_01)).unwrap();
        let error = same.check(&step(0.06, 2.1)).unwrap_err().to_string();
        assert_eq!(error, "the loss is 2.1, but 2 on the first side: not the same work");
        assert!(same.check(&step(0.06, f64::NAN)).is_err());
    }
}
