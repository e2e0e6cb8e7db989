//! Virtual ranks: the number of ranks becomes a matter of speed alone.
//!
//! A training has V *virtual ranks*, for all its life. Each has its share of the samples (`DistributedSampler` of rank v of V), its
//! batch, its random numbers (keyed by seed, epoch, step and v) and its loss. W real ranks, any number from 1 to V, take contiguous, nearly
//! equal parts of them, and train their virtual ranks one after the other. Gradients are summed along one binary tree over 0…V−1
//! (`tree.rs`), whatever W is, so the weights have the same bits with any number of ranks, and also if that number changes between two
//! steps, by a restart from a snapshot.
//!
//! [`DdpOptions::virtual_ranks`](crate::DdpOptions::virtual_ranks) turns it on. The loop then trains each virtual rank in turn:
//!
//! ```no_run
//! # use std::{num::NonZeroUsize, rc::Rc, sync::Arc};
//! # use lockstep::{DdpOptions, DistributedDataParallel, data::Dataset, loader::DataLoader, virtual_ranks::VirtualLoader};
//! # use lockstep::{optim::Optimizer, rng::seed_step, sampler::DistributedSampler};
//! # fn train(
//! #     net: tch::nn::Sequential, vs: &tch::nn::VarStore, group: Rc<c10d::ProcessGroup>, set: Arc<dyn Dataset>,
//! #     optimizer: &mut impl Optimizer,
//! # ) -> anyhow::Result<()> {
//! let options = DdpOptions { virtual_ranks: NonZeroUsize::new(8), ..Default::default() };
//! let model = DistributedDataParallel::new(net, vs, group, &options)?;
//! let ranks = model.virtual_ranks();
//! let loader = VirtualLoader::new(ranks, |v| {
//!     let sampler = DistributedSampler::new(set.len(), v, ranks.count())?;
//!     anyhow::Ok(DataLoader::new(Arc::clone(&set), sampler, 32)?.workers(1))
//! })?;
//! for (step, batches) in (0..).zip(loader.epoch(0)) {
//!     optimizer.zero_grad();
//!     let mut losses = Vec::new();
//!     for (v, batch) in batches? {
//!         seed_step(0, 0, step, v);
//!         let loss = model.forward(&batch.inputs)?.cross_entropy_for_logits(&batch.targets);
//!         model.backward(&loss)?; // of the last virtual rank: exchanges the sums
//!         losses.push(loss.detach());
//!     }
//!     optimizer.step()?;
//!     let losses: Vec<f64> = losses.iter().map(|loss| loss.double_value(&[])).collect();
//!     println!("{}", ranks.mean(model.group(), &losses)?); // the same for any number of ranks
//! }
//! # Ok(()) }
//! ```
//!
//! **While the last virtual rank's backward pass runs**, finished buckets are on their way, as with DDP: [`DdpOptions::bucket_cap_mb`] sets
//! their size. The passes of earlier virtual ranks need no communication. On a GPU, whose backward pass has threads of its own, and with
//! [`find_unused_parameters`], all buckets go after the pass. Libtorch's reducer is not made, nor its buckets.
//!
//! **Batch norm** has the statistics of each virtual batch, as DDP's ranks have those of their own; running statistics are virtual
//! rank 0's, as with `broadcast_buffers`. **Micro-batches** of one virtual rank go into [`no_sync`], all but the last, or into
//! [`accumulate_virtual`]. Gradient clipping, a [`GradScaler`], [`ZeroRedundancyOptimizer`] and [`Snapshots`] need nothing else:
//! all ranks have the same gradients.
//!
//! **With V = W it is plain DDP**, to the bit over shared memory, which adds along the same tree. Gloo's ring adds each element in
//! another order, which begins at another rank for each part of the bucket: from three ranks on, plain DDP over Gloo differs in the
//! last bits. Virtual ranks themselves have the same bits over all backends.
//!
//! **Bytes.** Of a gradient of B bytes, a rank with s subtrees of the tree sends (s + 1) · B · (W − 1) / W in a step: a reduce-scatter
//! of s sums, bucket by bucket, and an all-gather. A ring all-reduce sends 2 · B · (W − 1) / W, so it is the same where s is 1: if W is 1, 2, 4, V, or a
//! power of two that divides V. Otherwise s is at most 2 · log₂ V. Where s is 1, ranks that share memory add in place, as DDP's all-reduce does;
//! with more subtrees, pieces are copied once more, which is a small part of such a step. Sums of 16-bit gradients are kept, and sent, in 32 bits.
//!
//! **What else decides bits**: the number of libtorch's threads, which is set to 1 if `OMP_NUM_THREADS` is not set; V, the batch size and the
//! seed; the processor's vector instructions. A snapshot records them, and a run that resumes names each difference
//! ([`SnapshotOptions::virtual_ranks`](crate::snapshot::SnapshotOptions::virtual_ranks)). `lockstep bench elastic` compares the bits of trainings of many
//! kinds.
//!
//! Left out: sparse gradients, communication hooks, and layers that communicate inside the forward pass (`SyncBatchNorm2d`, tensor,
//! context and expert parallelism); they are refused, as are [`FullyShard`] and [`Pipeline`], which divide a training by its real ranks.
//!
//! [`DdpOptions::bucket_cap_mb`]: crate::DdpOptions::bucket_cap_mb
//! [`find_unused_parameters`]: crate::DdpOptions::find_unused_parameters
//! [`no_sync`]: crate::DistributedDataParallel::no_sync
//! [`accumulate_virtual`]: crate::accumulate::accumulate_virtual
//! [`GradScaler`]: crate::amp::GradScaler
//! [`ZeroRedundancyOptimizer`]: crate::optim::ZeroRedundancyOptimizer
//! [`Snapshots`]: crate::snapshot::Snapshots
//! [`FullyShard`]: crate::parallel::FullyShard
//! [`Pipeline`]: crate::parallel::Pipeline

mod sum;
mod tree;

use std::cell::Cell;
use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::ops::Range;

use c10d::{Error, ProcessGroup, Rank, Result, WorldSize};
use tch::{Kind, Tensor};

use crate::data::Batch;
use crate::ddp::Restore;
use crate::loader::{DataLoader, Epoch, EpochSteps, Position};

pub(crate) use sum::TreeSum;

const VIRTUAL: &str = "train with virtual ranks";

/// How many virtual ranks a training has, and which of them this rank trains. Without [`DdpOptions::virtual_ranks`] each rank trains one, its
/// own.
///
/// [`DdpOptions::virtual_ranks`]: crate::DdpOptions::virtual_ranks
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VirtualRanks {
    count: WorldSize,
    rank: Rank,
    world: WorldSize,
    /// False if each rank is its own virtual rank.
    asked_for: bool,
}

impl VirtualRanks {
    /// The part of `count` virtual ranks that this rank of `group` trains.
    ///
    /// # Errors
    /// `BadArgument` if there are more ranks than virtual ones.
    pub fn new(count: NonZeroUsize, group: &ProcessGroup) -> Result<Self> {
        let ranks = VirtualRanks {
            count: WorldSize::new(count.get()).unwrap_or(WorldSize::ONE),
            asked_for: true,
            ..Self::of_ranks(group)
        };
        if ranks.world > ranks.count {
            let why = format!(
                "{} ranks are more than {count} virtual ranks, so that some would have nothing to do: start {count} ranks or fewer",
                ranks.world.get()
            );
            return Err(Error::bad_argument(VIRTUAL, why));
        }
        Ok(ranks)
    }

    /// Each rank is its own virtual rank.
    pub(crate) fn of_ranks(group: &ProcessGroup) -> Self {
        VirtualRanks { count: group.size(), rank: group.rank(), world: group.size(), asked_for: false }
    }

    /// The number of virtual ranks, V.
    pub fn count(self) -> WorldSize {
        self.count
    }

    /// False if each rank is its own virtual rank, as without [`DdpOptions::virtual_ranks`](crate::DdpOptions::virtual_ranks).
    pub fn are_asked_for(self) -> bool {
        self.asked_for
    }

    /// The virtual ranks that this rank trains, in the order of training.
    pub fn own(self) -> impl ExactSizeIterator<Item = Rank> + Clone {
        self.part().map(Rank::new)
    }

    fn part(self) -> Range<usize> {
        tree::part(self.rank.get(), self.world.get(), self.count.get())
    }

    /// The subtrees of each rank.
    fn subtrees(self) -> Vec<Vec<Range<usize>>> {
        let (world, count) = (self.world.get(), self.count.get());
        (0..world).map(|rank| tree::subtrees(&tree::part(rank, world, count), count)).collect()
    }

    /// The mean loss over all virtual ranks of `own`, the losses of this rank's virtual ranks: the same number for any number of ranks. A
    /// collective. Without virtual ranks it is this rank's loss, and nothing is sent.
    ///
    /// # Errors
    /// `BadArgument` unless there is one loss for each of this rank's virtual ranks; any failure of the collective.
    pub fn mean(self, group: &ProcessGroup, own: &[f64]) -> Result<f64> {
        if !self.asked_for && own.len() == 1 {
            return Ok(own[0]);
        }
        let own: Vec<[f64; 1]> = own.iter().map(|loss| [*loss]).collect();
        Ok(self.sums(group, &own)?[0] / self.count.get() as f64)
    }

    /// Sums over all virtual ranks, in the tree's order, of the numbers of this rank's. A collective.
    pub(crate) fn sums<const N: usize>(self, group: &ProcessGroup, own: &[[f64; N]]) -> Result<[f64; N]> {
        let part = self.part();
        if own.len() != part.len() {
            let why = format!("this rank has {} virtual ranks, and numbers of {}", part.len(), own.len());
            return Err(Error::bad_argument(VIRTUAL, why));
        }
        let rows = self.count.get().div_ceil(self.world.get());
        let mut mine = vec![[0.0; N]; rows];
        mine[..own.len()].copy_from_slice(own);
        let mine = Tensor::from_slice(mine.as_flattened()).to_device(group.device());
        let size = (self.world.get() * rows * N) as i64;
        let mut all = Tensor::zeros([size], (Kind::Double, group.device()));
        group.all_gather_into_tensor(&mut all, &mine)?;
        let all: Vec<f64> = Vec::try_from(all).map_err(|error| Error::of_torch(VIRTUAL, &error))?;
        let mut leaves = HashMap::new();
        for (rank, rows) in all.chunks_exact(rows * N).enumerate() {
            let part = tree::part(rank, self.world.get(), self.count.get());
            for (v, row) in part.zip(rows.chunks_exact(N)) {
                leaves.insert(v..v + 1, std::array::from_fn::<f64, N, _>(|i| row[i]));
            }
        }
        let mut add = |a: [f64; N], b: [f64; N]| std::array::from_fn(|i| a[i] + b[i]);
        Ok(tree::total(0..self.count.get(), &mut leaves, &mut add))
    }
}

/// The data loaders of this rank's virtual ranks, one each, which go through their shards in step.
pub struct VirtualLoader {
    loaders: Vec<(Rank, DataLoader)>,
}

impl VirtualLoader {
    /// Calls `make` for each virtual rank of this rank. `make` gets its number v, and returns a loader of shard v of [`VirtualRanks::count`].
    ///
    /// # Errors
    /// Those of `make`.
    pub fn new<E>(ranks: VirtualRanks, mut make: impl FnMut(Rank) -> Result<DataLoader, E>) -> Result<Self, E> {
        let loaders = ranks.own().map(|v| Ok((v, make(v)?))).collect::<Result<Vec<_>, E>>()?;
        Ok(VirtualLoader { loaders })
    }

    /// The loader of this rank's first virtual rank. All virtual ranks have as many steps, and the same positions.
    pub fn first(&self) -> &DataLoader {
        &self.loaders[0].1 // a part is never empty: there are at least as many virtual ranks as ranks
    }

    /// As [`DataLoader::epoch`]: of each step the virtual ranks with their batches, in the order to train them.
    pub fn epoch(&self, epoch: u64) -> VirtualEpoch {
        self.epoch_at(Position::start_of(epoch))
    }

    /// As [`DataLoader::epoch_at`].
    pub fn epoch_at(&self, from: Position) -> VirtualEpoch {
        VirtualEpoch { epochs: self.loaders.iter().map(|(v, loader)| (*v, loader.epoch_at(from))).collect() }
    }

    /// As [`DataLoader::steps`].
    pub fn steps(&self) -> usize {
        self.first().steps()
    }

    /// As [`DataLoader::after`].
    pub fn after(&self, from: Position, step: usize) -> Position {
        self.first().after(from, step)
    }
}

impl EpochSteps for VirtualLoader {
    fn batch_size(&self) -> usize {
        self.first().batch_size()
    }

    fn steps_at(&self, from: Position) -> usize {
        self.first().steps_at(from)
    }

    /// The shards of this rank's virtual ranks, one after the other.
    fn indices_at(&self, from: Position) -> Vec<usize> {
        self.loaders.iter().flat_map(|(_, loader)| loader.indices_at(from)).collect()
    }
}

/// The batches of an epoch; see [`VirtualLoader::epoch`]. An error is the last item.
#[derive(Debug)]
pub struct VirtualEpoch {
    epochs: Vec<(Rank, Epoch)>,
}

impl Iterator for VirtualEpoch {
    type Item = anyhow::Result<Vec<(Rank, Batch)>>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = |(v, epoch): &mut (Rank, Epoch)| Some(epoch.next()?.map(|batch| (*v, batch)));
        let batches: Option<anyhow::Result<Vec<_>>> = self.epochs.iter_mut().map(next).collect();
        match batches {
            Some(Ok(batches)) => (!batches.is_empty()).then_some(Ok(batches)),
            ended => {
                self.epochs.clear();
                ended
            }
        }
    }
}

thread_local! {
    static IN_PASS: Cell<bool> = const { Cell::new(false) };
}

/// Runs the forward pass of a virtual rank.
pub(crate) fn in_pass<T>(body: impl FnOnce() -> T) -> T {
    IN_PASS.with(|flag| {
        let _restore = Restore::after(flag, true);
        body()
    })
}

/// Refuses a layer that communicates in its forward pass: the ranks have different numbers of virtual ranks, and so of passes.
pub(crate) fn refuse_in_pass(layer: &str) -> Result<()> {
    if !IN_PASS.get() {
        return Ok(());
    }
    let why = format!(
        "{layer} communicates between ranks in each forward pass, and ranks have different numbers of virtual ranks: \
         leave it out, or virtual ranks"
    );
    Err(Error::bad_argument(VIRTUAL, why))
}
