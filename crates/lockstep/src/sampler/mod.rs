//! Samplers: which samples a rank sees, and in which order.
//!
//! | sampler | order | for |
//! |---|---|---|
//! | [`SequentialSampler`] | 0, 1, 2, … | one process, no shuffling |
//! | [`RandomSampler`] | a new permutation each epoch | one process |
//! | [`DistributedSampler`] | PyTorch's own, bit for bit, one shard a rank | training on several ranks |
//! | [`EvalSampler`] | each sample exactly once over all ranks | evaluation on several ranks |
//!
//! Samplers do not load data; [`crate::loader`] does.

mod distributed;
mod eval;
mod randperm;
mod single;

use std::sync::Arc;

pub use distributed::{DistributedSampler, RankOutsideWorld};
pub use eval::EvalSampler;
pub use randperm::randperm;
pub use single::{RandomSampler, SequentialSampler};

/// The order of the samples, as a pure function of the epoch.
///
/// PyTorch's samplers store the epoch, and a training loop that forgets `sampler.set_epoch(epoch)` silently repeats one order
/// forever. Here the epoch is an argument: there is no call to forget.
///
/// A pure function has no position either. To resume inside an epoch, ask for the rest of the same epoch:
/// [`indices_from`](Self::indices_from), which [`DataLoader::epoch_at`](crate::loader::DataLoader::epoch_at) calls.
pub trait Sampler: Send + Sync {
    /// The [`len`](Self::len) indices to visit in `epoch`, in that order: always the same for the same epoch.
    fn indices(&self, epoch: u64) -> Vec<usize>;

    /// The number of indices of an epoch, the same for every epoch.
    fn len(&self) -> usize;

    /// Returns true if an epoch has no indices.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many ranks share the order of an epoch, each taking every n-th index; 1 for a single process.
    fn shards(&self) -> usize {
        1
    }

    /// The rest of this rank's [`indices`](Self::indices) after all ranks together have taken the first `taken` of the epoch's
    /// order, in a world of any size: the rest is distributed over the current ranks. Empty if `taken` is the whole order or
    /// more.
    fn indices_from(&self, epoch: u64, taken: usize) -> Vec<usize> {
        self.indices(epoch).into_iter().skip(taken).collect()
    }

    /// The number of indices of [`indices_from`](Self::indices_from), the same for every epoch.
    fn len_from(&self, taken: usize) -> usize {
        self.len().saturating_sub(taken)
    }
}

/// A pointer to a sampler is a sampler.
macro_rules! forward {
    ($pointer:ident) => {
        impl<S: Sampler + ?Sized> Sampler for $pointer<S> {
            fn indices(&self, epoch: u64) -> Vec<usize> {
                (**self).indices(epoch)
            }

            fn len(&self) -> usize {
                (**self).len()
            }

            fn shards(&self) -> usize {
                (**self).shards()
            }

            fn indices_from(&self, epoch: u64, taken: usize) -> Vec<usize> {
                (**self).indices_from(epoch, taken)
            }

            fn len_from(&self, taken: usize) -> usize {
                (**self).len_from(taken)
            }
        }
    };
}

forward!(Arc);
forward!(Box);

/// The generator's seed for an epoch. PyTorch adds the two as well; a sum beyond 64 bits, which it rejects, wraps here.
fn epoch_seed(seed: u64, epoch: u64) -> u64 {
    seed.wrapping_add(epoch)
}
