//! Data sets: what they promise the loader, and the ones that the labs use.

use tch::Tensor;

/// Some samples, stacked along dimension 0.
#[derive(Debug)]
pub struct Batch {
    /// The models' inputs, shape `[n, …]`.
    pub inputs: Tensor,
    /// What the model shall answer, shape `[n]` (class numbers, `Int64`) or `[n, …]` (`Float`).
    pub targets: Tensor,
}

/// A map-style data set: a known length, and any samples on demand, from any thread.
///
/// A batch must depend on the arguments only, never on what was asked before: that is what makes a resumed run
/// repeat the bits of one that was not interrupted. Random augmentation is keyed by (seed, epoch, index).
pub trait Dataset: Send + Sync {
    /// How many samples there are.
    fn len(&self) -> usize;

    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The samples at `indices`, in that order, as they are in `epoch`.
    fn batch(&self, epoch: u64, indices: &[usize]) -> anyhow::Result<Batch>;
}
