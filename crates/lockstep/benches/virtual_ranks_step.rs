//! Measures a step of virtual ranks against a step of DDP that accumulates the gradients of as many batches on each rank: of the MLP, and
//! of the ResNet, with the sizes of `lockstep bench ddp`.
//!
//! The work is the same; virtual ranks keep partial sums apart, and ranks with several subtrees send more.

#[path = "support/formula.rs"]
mod formula;
#[path = "support/mlp.rs"]
mod mlp;
#[path = "support/resnet.rs"]
mod resnet;
#[path = "../../../engine/c10d/benches/support/mod.rs"]
mod support;

use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::rc::Rc;

use c10d::ProcessGroup;
use criterion::Criterion;
use lockstep::models::Norm;
use lockstep::optim::{Optimizer, Sgd, SgdOptions, named_parameters};
use lockstep::virtual_ranks::VirtualRanks;
use lockstep::{DdpOptions, DistributedDataParallel};
use support::process_set::{ProcessSet, Tasks};
use support::{Result, rounds};
use tch::nn::{ModuleT, VarStore};
use tch::{Device, Tensor};

const PEERS: [&str; 1] = ["the step of DDP with accumulation"];
/// A task is the place of its model, times 2 plus the side.
const SIDES: usize = 2;
/// Numbers of ranks, each with a number of virtual ranks. Three ranks of eight have up to two subtrees each.
const CASES: [(usize, usize); 4] = [(1, 4), (2, 4), (4, 4), (3, 8)];
const MODELS: [&str; 2] = ["MLP", "ResNet"];
/// Channels of the ResNet's first stage.
const WIDTH: i64 = 16;

fn main() -> ExitCode {
    support::process_set::main::<Steps>(|| {
        let mut criterion = Criterion::default().configure_from_args();
        for (ranks, count) in CASES {
            rounds::print_machine(ranks, "rank");
            let mut processes: ProcessSet<Steps> = ProcessSet::start(ranks)?;
            let mut group = criterion.benchmark_group("virtual_ranks_step");
            rounds::configure(&mut group);
            for (number, model) in MODELS.iter().enumerate() {
                let name = format!("{model}, {count} virtual ranks on {ranks}");
                rounds::bench(&mut group, &name, &PEERS, |side, iterations| {
                    processes.time(number * SIDES + side, iterations).expect("all ranks are there")
                });
            }
            group.finish();
            processes.end()?;
        }
        criterion.final_summary();
        Ok(())
    })
}

/// One rank's models: of each, first with virtual ranks.
struct Steps(Vec<Trainer>);

impl Tasks for Steps {
    fn new(group: Rc<ProcessGroup>) -> Result<Self> {
        let mut trainers = Vec::new();
        let count = CASES.iter().find(|(ranks, _)| *ranks == group.size().get()).map(|(_, count)| *count);
        let virtual_ranks = count.and_then(NonZeroUsize::new);
        let passes =
            virtual_ranks.map_or(Ok(1), |count| VirtualRanks::new(count, &group).map(|own| own.own().len()))?;
        for model in MODELS {
            for virtual_ranks in [virtual_ranks, None] {
                trainers.push(Trainer::new(Rc::clone(&group), model, virtual_ranks, passes)?);
            }
        }
        Ok(Steps(trainers))
    }

    fn run(&mut self, task: usize, iterations: u64) -> Result<()> {
        (0..iterations).try_for_each(|_| self.0[task].step())
    }
}

/// A model with its optimizer and its batch; every step does the same work.
struct Trainer {
    ddp: DistributedDataParallel<Box<dyn ModuleT>>,
    optimizer: Sgd,
    inputs: Tensor,
    targets: Tensor,
    /// Of a step: one for each of the rank's virtual ranks.
    passes: usize,
}

impl Trainer {
    fn new(group: Rc<ProcessGroup>, model: &str, virtual_ranks: Option<NonZeroUsize>, passes: usize) -> Result<Self> {
        let (vs, rank) = (VarStore::new(Device::Cpu), group.rank().get() as i64);
        let (net, (inputs, targets)): (Box<dyn ModuleT>, _) = match model {
            "MLP" => (Box::new(mlp::network(&vs)), mlp::batch(rank, mlp::BATCH)),
            _ => (Box::new(resnet::network(&vs, Norm::Batch, WIDTH)), resnet::batch(rank, mlp::BATCH)),
        };
        let optimizer = Sgd::new(named_parameters(&vs), SgdOptions { lr: 0.0, momentum: 0.9, ..Default::default() })?;
        let options = DdpOptions { virtual_ranks, ..Default::default() };
        let ddp = DistributedDataParallel::new(net, &vs, group, &options)?;
        Ok(Trainer { ddp, optimizer, inputs, targets, passes })
    }

    /// A step, whose gradients are exchanged after the last pass.
    fn step(&mut self) -> Result<()> {
        self.optimizer.zero_grad();
        let Trainer { ddp, inputs, targets, .. } = self;
        let pass = || -> Result<()> {
            let loss = ddp.forward_with(|net| net.forward_t(inputs, true))?.cross_entropy_for_logits(targets);
            Ok(ddp.backward(&loss)?)
        };
        let others = || (1..self.passes).try_for_each(|_| pass());
        if ddp.virtual_ranks().are_asked_for() { others() } else { ddp.no_sync(others) }?;
        pass()?;
        Ok(self.optimizer.step()?)
    }
}
