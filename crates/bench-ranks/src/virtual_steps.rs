//! Virtual ranks: small trainings whose bits are compared, and steps of the MLP that go on from its newest snapshot after a loss.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::time::Instant;

use anyhow::{Result, ensure};
use c10d::{Backend, ProcessGroup};
use lockstep::loader::Position;
use lockstep::optim::{Optimizer, Sgd, SgdOptions, named_parameters};
use lockstep::snapshot::{Run, Save, SnapshotOptions, Snapshots};
use lockstep::{DdpOptions, DistributedDataParallel, LaunchEnv, Reporter, all_gather_object};
use lockstep_rank_messages::bench::{ElasticAnswer, ElasticOrder, ResumedAnswer, ResumedOrder};
use tch::nn::{Sequential, VarStore};
use tch::{Device, Tensor};

use crate::mlp;
use crate::virtual_ranks::{Draws, train};

/// A small training. Every rank calls this with the same order.
///
/// # Errors
/// The ranks ended with different bits.
pub(crate) fn elastic(env: &LaunchEnv, group: &Rc<ProcessGroup>, order: &ElasticOrder) -> Result<ElasticAnswer> {
    let ElasticOrder { training, folder, until } = order;
    // Each number of ranks has a launcher of its own here, but they are one job: its newest snapshot counts, whoever saved it.
    let env = LaunchEnv { run_id: Some(folder.display().to_string()), ..env.clone() };
    let report = Reporter::new(&env, group.device())?;
    let outcome = train(Rc::clone(group), &report, training, Draws::Generator, folder, *until as usize)?;
    let mut hasher = DefaultHasher::new();
    (&outcome.evaluation, &outcome.weights).hash(&mut hasher);
    let backend = group.backends().of(group.device()).map(Backend::name).unwrap_or_default().to_owned();
    let own = ElasticAnswer { bits: hasher.finish(), losses: outcome.losses, backend };
    let all = all_gather_object(group, &own)?;
    // Without virtual ranks each reports its own losses.
    let shown = |answer: &ElasticAnswer| (answer.bits, training.virtual_ranks.map(|_| answer.losses.clone()));
    let other = all.iter().position(|other| shown(other) != shown(&all[0]));
    ensure!(other.is_none(), "rank {} ended with other bits than rank 0", other.unwrap_or_default());
    Ok(own)
}

/// Steps between two snapshots.
const EVERY: u64 = 10;

/// The MLP with virtual ranks, from its newest snapshot on.
pub(crate) struct Resumed {
    ddp: DistributedDataParallel<Sequential>,
    vs: VarStore,
    optimizer: Sgd,
    inputs: Tensor,
    targets: Tensor,
    snapshots: Snapshots,
    /// Steps since the beginning.
    done: u64,
}

impl Resumed {
    /// Every rank calls this with the same order. The first order resumes.
    pub(crate) fn run(
        there: &mut Option<Self>,
        env: &LaunchEnv,
        group: &Rc<ProcessGroup>,
        order: &ResumedOrder,
    ) -> Result<ResumedAnswer> {
        let resumed = match there {
            Some(resumed) => resumed,
            none => none.insert(Self::resume(env, group, order)?),
        };
        let (from, begun) = (resumed.done, Instant::now());
        (0..order.steps).try_for_each(|_| resumed.step())?;
        Ok(ResumedAnswer { from, seconds: begun.elapsed().as_secs_f64() })
    }

    fn resume(env: &LaunchEnv, group: &Rc<ProcessGroup>, order: &ResumedOrder) -> Result<Self> {
        let vs = VarStore::new(Device::Cpu);
        let (net, virtual_ranks) = (mlp::network(&vs), NonZeroUsize::new(order.virtual_ranks));
        let options = DdpOptions { virtual_ranks, ..Default::default() };
        let ddp = DistributedDataParallel::new(net, &vs, Rc::clone(group), &options)?;
        let options = SgdOptions { lr: 1e-3, momentum: 0.9, ..Default::default() };
        let mut optimizer = Sgd::new(named_parameters(&vs), options)?;
        let (inputs, targets) = mlp::batch(0, i64::from(order.batch));
        let batch_size = order.batch as usize;
        let run = Run { seed: 0, samples: batch_size * order.virtual_ranks, data: 0, batch_size };
        let options = SnapshotOptions { virtual_ranks, ..Default::default() };
        let mut snapshots = Snapshots::new(&order.folder, run, options, &Reporter::new(env, group.device())?);
        let done = snapshots.resume(&vs, &mut optimizer, group)?.epoch;
        Ok(Resumed { ddp, vs, optimizer, inputs, targets, snapshots, done })
    }

    /// One step; every so often a snapshot after it, which a thread writes.
    fn step(&mut self) -> Result<()> {
        let Resumed { ddp, vs, optimizer, inputs, targets, snapshots, done } = self;
        optimizer.zero_grad();
        for _ in ddp.virtual_ranks().own() {
            let loss = ddp.forward(inputs)?.cross_entropy_for_logits(targets);
            ddp.backward(&loss)?;
        }
        optimizer.step()?;
        *done += 1;
        // A step is an epoch.
        Ok(snapshots.save_if(
            *done % EVERY == 0,
            Save::new(Position::start_of(*done), &*vs, &*optimizer),
            ddp.group(),
        )?)
    }
}
