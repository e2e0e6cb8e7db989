//! Batches in a sampler's order, loaded ahead by worker threads.
//!
//! [`DataLoader`] holds what to load and how; [`Epoch`] is one pass, or the rest of one; [`Position`] is the point that a run
//! has reached. [`crate::sampler`] chooses the samples, [`crate::data`] reads them.

mod workers;

use std::fmt;
use std::iter::FusedIterator;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tch::Device;
use thiserror::Error;

use crate::data::{Batch, Dataset};
use crate::sampler::Sampler;
use workers::{BatchMemory, EpochPlan, Workers};

/// Loads a data set in batches, in the order of a sampler, with the defaults of PyTorch's `DataLoader`.
///
/// ```no_run
/// # fn train(set: std::sync::Arc<dyn lockstep::data::Dataset>) -> anyhow::Result<()> {
/// use lockstep::loader::DataLoader;
/// use lockstep::sampler::RandomSampler;
///
/// let sampler = RandomSampler::new(set.len());
/// let loader = DataLoader::new(set, sampler, 64)?.workers(2);
/// for epoch in 0..10 {
///     for batch in loader.epoch(epoch) {
///         let batch = batch?;
///         println!("{:?} → {:?}", batch.inputs.size(), batch.targets.size());
///     }
/// }
/// # Ok(()) }
/// ```
///
/// **Order.** The batches and their order depend on the sampler, the batch size and the epoch alone: neither on the number of
/// workers nor on their speed.
///
/// **Memory.** With workers, at most `workers × prefetch` batches are being loaded or waiting, plus the one returned last;
/// without, only that one. Batches that the caller keeps are extra.
///
/// **Threads.** Workers are started for each [`Epoch`] and joined at its end (some 20 µs a worker), so no thread outlives its
/// iterator. Each computes with one thread, as a worker of Python's loader does: with more, they would take the cores from the
/// training. Without workers, the caller's operations have the process's number of threads, and a sum over many numbers may
/// differ in its last bits. Launchers set that number to 1.
pub struct DataLoader {
    dataset: Arc<dyn Dataset>,
    sampler: Box<dyn Sampler>,
    batch_size: usize,
    workers: usize,
    prefetch: usize,
    drop_last: bool,
    memory: BatchMemory,
}

/// Panics when the batch size is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the batch size is 0: pass the number of samples that one step of one rank takes, 1 or more")]
pub struct ZeroBatchSize;

impl DataLoader {
    /// Batches of `batch_size` samples (of this rank, not of all), loaded in the caller's thread; the last one of an
    /// epoch may be smaller.
    pub fn new(
        dataset: Arc<dyn Dataset>,
        sampler: impl Sampler + 'static,
        batch_size: usize,
    ) -> Result<Self, ZeroBatchSize> {
        if batch_size == 0 {
            return Err(ZeroBatchSize);
        }
        let sampler = Box::new(sampler);
        Ok(DataLoader {
            dataset,
            sampler,
            batch_size,
            workers: 0,
            prefetch: 2,
            drop_last: false,
            memory: BatchMemory::default(),
        })
    }

    /// The number of threads that load ahead; 0, the default, loads each batch on demand.
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers;
        self
    }

    /// How many batches each worker may be ahead, including the one in progress; 2 by default, and 0 counts as 1. Has no effect
    /// without workers.
    pub fn prefetch(mut self, prefetch: usize) -> Self {
        self.prefetch = prefetch.max(1);
        self
    }

    /// Whether to leave out an incomplete last batch. Unlike the sampler's option of the same name, this concerns batches: for
    /// example, it keeps batch norm from seeing a batch of 1.
    pub fn drop_last(mut self, drop_last: bool) -> Self {
        self.drop_last = drop_last;
        self
    }

    /// Whether the inputs, of shape `[n, c, h, w]`, come with the channels last in memory, as a model after
    /// [`models::channels_last`](crate::models::channels_last) expects them.
    pub fn channels_last(mut self, channels_last: bool) -> Self {
        self.memory.channels_last = channels_last;
        self
    }

    /// Puts batches into page-locked memory if `device`, to which they will go, is a GPU: [`Batch::to`](crate::data::Batch::to) then
    /// does not wait. With workers, the workers copy.
    pub fn pin_memory(mut self, device: Device) -> Self {
        self.memory.pinned = matches!(device, Device::Cuda(_));
        self
    }

    /// The order of the samples.
    pub fn sampler(&self) -> &dyn Sampler {
        &*self.sampler
    }

    /// How many batches an epoch has; the same for every epoch.
    pub fn steps(&self) -> usize {
        self.batches(self.sampler.len())
    }

    /// The batches of `epoch`, from the first.
    pub fn epoch(&self, epoch: u64) -> Epoch {
        self.epoch_from(epoch, 0)
    }

    /// The batches of `epoch` from `first_step` on, the same as [`epoch`](Self::epoch) gives from there. Skipped batches are
    /// not loaded. Steps are those of this world and batch size; a run that may have used others resumes with
    /// [`epoch_at`](Self::epoch_at).
    ///
    /// A `first_step` of [`steps`](Self::steps) gives no batch, a larger one an error.
    pub fn epoch_from(&self, epoch: u64, first_step: usize) -> Epoch {
        Epoch::start(self.plan(Position::start_of(epoch)), first_step, self.workers, self.prefetch)
    }

    /// The batches of an epoch from a position on: how a run continues inside an epoch, even in a world of another size. If the
    /// size is the same, these are exactly the remaining batches.
    pub fn epoch_at(&self, from: Position) -> Epoch {
        Epoch::start(self.plan(from), from.step, self.workers, self.prefetch)
    }

    /// How many batches [`epoch_at`](Self::epoch_at) gives.
    pub fn steps_at(&self, from: Position) -> usize {
        self.batches(self.sampler.len_from(from.samples))
    }

    /// The position after step `step`, in an epoch that was entered at `from`: before the next step, or at the start of the
    /// next epoch.
    pub fn after(&self, from: Position, step: usize) -> Position {
        let done = (step + 1).saturating_sub(from.step);
        if done >= self.steps_at(from) {
            return Position::start_of(from.epoch + 1);
        }
        Position { epoch: from.epoch, step: step + 1, samples: from.samples + done * self.samples_per_step() }
    }

    /// Samples that all ranks together take in a step, except the last.
    fn samples_per_step(&self) -> usize {
        self.batch_size * self.sampler.shards()
    }

    fn batches(&self, samples: usize) -> usize {
        if self.drop_last { samples / self.batch_size } else { samples.div_ceil(self.batch_size) }
    }

    fn plan(&self, from: Position) -> EpochPlan {
        EpochPlan {
            dataset: Arc::clone(&self.dataset),
            promised: self.sampler.len_from(from.samples),
            indices: self.indices_at(from),
            epoch: from.epoch,
            batch_size: self.batch_size,
            first: from.step,
            steps: from.step + self.steps_at(from),
            memory: self.memory,
        }
    }
}

/// What goes through an epoch in steps: a [`DataLoader`], or the loaders of [virtual ranks](crate::virtual_ranks::VirtualLoader).
pub trait EpochSteps {
    /// Samples in a batch.
    fn batch_size(&self) -> usize;

    /// How many steps an epoch still has at a position.
    fn steps_at(&self, from: Position) -> usize;

    /// The samples of this rank that an epoch still has at a position.
    fn indices_at(&self, from: Position) -> Vec<usize>;
}

impl EpochSteps for DataLoader {
    fn batch_size(&self) -> usize {
        self.batch_size
    }

    fn steps_at(&self, from: Position) -> usize {
        self.steps_at(from)
    }

    fn indices_at(&self, from: Position) -> Vec<usize> {
        self.sampler.indices_from(from.epoch, from.samples)
    }
}

/// The batches of an epoch in order, each a `Result`.
///
/// An error or a panic of the data set is returned at its step's position, after all batches before it. It names the step and
/// the samples, and is the last item. Dropping the iterator early joins its workers, which takes as long as their current
/// batches.
pub struct Epoch {
    plan: Arc<EpochPlan>,
    ahead: Range<usize>,
    /// `None` if the caller's thread does the loading.
    workers: Option<Workers>,
    /// An error at the start; then it is the only item.
    fault: Option<anyhow::Error>,
}

impl Epoch {
    fn start(plan: EpochPlan, first_step: usize, workers: usize, prefetch: usize) -> Self {
        let mut epoch = Epoch { ahead: first_step..plan.steps, plan: Arc::new(plan), workers: None, fault: None };
        if let Err(fault) = epoch.prepare(workers, prefetch) {
            epoch.fault = Some(fault);
        }
        epoch
    }

    fn prepare(&mut self, workers: usize, prefetch: usize) -> anyhow::Result<()> {
        self.plan.check(self.ahead.start)?;
        if workers > 0 {
            self.workers = Some(Workers::start(&self.plan, self.ahead.clone(), workers, prefetch)?);
        }
        Ok(())
    }

    fn load(&mut self, step: usize) -> anyhow::Result<Batch> {
        match &mut self.workers {
            Some(workers) => workers.take(step),
            None => self.plan.load(step),
        }
    }

    fn finish(&mut self) {
        self.ahead = 0..0;
        self.workers = None;
    }
}

impl Iterator for Epoch {
    type Item = anyhow::Result<Batch>;

    fn next(&mut self) -> Option<Self::Item> {
        let _loading = c10d::stragglers::loading();
        let item = match self.fault.take() {
            Some(fault) => Err(fault),
            None => {
                let step = self.ahead.next()?;
                self.load(step)
            }
        };
        if item.is_err() || self.ahead.is_empty() {
            self.finish();
        }
        Some(item)
    }

    /// At most the remaining steps; fewer when one of them fails.
    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.ahead.len().max(usize::from(self.fault.is_some()))))
    }
}

impl FusedIterator for Epoch {}

impl fmt::Debug for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Epoch").field("epoch", &self.plan.epoch).field("ahead", &self.ahead).finish_non_exhaustive()
    }
}

/// The next step of a run. A snapshot needs nothing else from the loader, since the order of an epoch is a pure function of its
/// number.
///
/// A step is a batch of one rank, so its number alone means nothing to a run with another batch size or world size. The number
/// of samples does: all ranks together have taken the first [`samples`](Self::samples) of the epoch's order, and the rest can
/// be distributed over any number of ranks ([`Sampler::indices_from`](crate::sampler::Sampler::indices_from)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Position {
    /// The epoch, from 0.
    pub epoch: u64,
    /// How many steps of the epoch every rank has done, under any world sizes.
    pub step: usize,
    /// How many samples of the epoch's order all ranks together have taken; always fewer than all.
    pub samples: usize,
}

impl Position {
    /// Before the first step of `epoch`.
    pub const fn start_of(epoch: u64) -> Self {
        Position { epoch, step: 0, samples: 0 }
    }

    /// Returns true if no step of the epoch is done.
    pub fn is_start(self) -> bool {
        self.step == 0 && self.samples == 0
    }

    /// Where the loop over epochs enters `epoch`: at this position if it is in that epoch, otherwise at its start.
    ///
    /// ```no_run
    /// # use lockstep::loader::Position;
    /// let resumed = Position { epoch: 2, step: 3, samples: 96 };
    /// assert_eq!(resumed.within(2), resumed);
    /// assert_eq!(resumed.within(3), Position::start_of(3));
    /// ```
    pub fn within(self, epoch: u64) -> Self {
        if self.epoch == epoch { self } else { Position::start_of(epoch) }
    }
}
