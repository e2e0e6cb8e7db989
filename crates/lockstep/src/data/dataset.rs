//! The trait of data sets (a known length, and any samples on demand), and parts of a data set.

use std::sync::Arc;

use tch::{Device, Tensor};

/// A batch of samples, stacked along dimension 0.
#[derive(Debug)]
pub struct Batch {
    /// The models' inputs, shape `[n, …]`.
    pub inputs: Tensor,
    /// The expected outputs, shape `[n]` (class numbers, `Int64`), `[n, t]` (tokens, `Int64`) or `[n, …]` (`Float`).
    pub targets: Tensor,
}

impl Batch {
    /// The number of samples.
    pub fn len(&self) -> usize {
        self.targets.size().first().map_or(0, |&n| usize::try_from(n).unwrap_or(0))
    }

    /// Returns true if there are no samples.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The same samples on `device`. From page-locked memory a GPU copies while the program continues, and later work on the
    /// GPU waits for the copy. From other memory this call waits.
    #[must_use]
    pub fn to(&self, device: Device) -> Batch {
        let to = |tensor: &Tensor| match device {
            Device::Cuda(_) => tensor.to_device_(device, tensor.kind(), true, false),
            _ => tensor.to_device(device),
        };
        Batch { inputs: to(&self.inputs), targets: to(&self.targets) }
    }

    /// The same batch with the channels of its inputs, `[n, c, h, w]`, last in memory.
    pub fn channels_last(self) -> c10d::Result<Batch> {
        Ok(Batch { inputs: c10d::channels_last(&self.inputs)?, ..self })
    }

    /// The same batch in page-locked memory.
    pub fn pinned(self) -> c10d::Result<Batch> {
        Ok(Batch { inputs: c10d::pin_memory(&self.inputs)?, targets: c10d::pin_memory(&self.targets)? })
    }
}

/// A map-style data set: a known length, and any samples on demand, from any thread.
///
/// A batch must depend on the arguments only, never on earlier calls. So a resumed run repeats the bits of an uninterrupted
/// one. Key random augmentation by (seed, epoch, index).
pub trait Dataset: Send + Sync {
    /// The number of samples.
    fn len(&self) -> usize;

    /// Returns true if there are no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The samples at `indices`, in that order, as they are in `epoch`.
    fn batch(&self, epoch: u64, indices: &[usize]) -> anyhow::Result<Batch>;

    /// Returns true if a batch may leave out samples that cannot be read; by default they are an error.
    fn leaves_out(&self) -> bool {
        false
    }

    /// A number that distinguishes this set from others, even of the same length: by default a CRC-32 of its length and of some
    /// evenly spread samples. A set that can cheaply hash more of its data should.
    fn fingerprint(&self) -> anyhow::Result<u32> {
        let len = self.len();
        let indices: Vec<usize> = (0..len.min(PROBES)).map(|probe| len / len.min(PROBES) * probe).collect();
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&(len as u64).to_le_bytes());
        if !indices.is_empty() {
            let Batch { inputs, targets } = self.batch(0, &indices)?;
            hasher.update(&bytes(&inputs)?);
            hasher.update(&bytes(&targets)?);
        }
        Ok(hasher.finalize())
    }
}

/// How many samples a fingerprint covers.
const PROBES: usize = 64;

fn bytes(tensor: &Tensor) -> Result<Vec<u8>, tch::TchError> {
    let mut bytes = vec![0; tensor.numel() * tensor.kind().elt_size_in_bytes()];
    tensor.f_copy_data_u8(&mut bytes, tensor.numel())?;
    Ok(bytes)
}

impl<D: Dataset + ?Sized> Dataset for Arc<D> {
    fn len(&self) -> usize {
        (**self).len()
    }

    fn leaves_out(&self) -> bool {
        (**self).leaves_out()
    }

    fn batch(&self, epoch: u64, indices: &[usize]) -> anyhow::Result<Batch> {
        (**self).batch(epoch, indices)
    }

    fn fingerprint(&self) -> anyhow::Result<u32> {
        (**self).fingerprint()
    }
}

/// A requested sample does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "take sample {index} of a data set of {len}: indices run from 0 below the length; check that the sampler was made \
     for this set"
)]
pub struct IndexOutOfRange {
    /// The requested index.
    pub index: usize,
    /// The number of samples in the set.
    pub len: usize,
}

/// Returns an error for the first of `indices` that is not below `len`. For implementations of [`Dataset::batch`].
pub fn check_indices(len: usize, indices: &[usize]) -> Result<(), IndexOutOfRange> {
    match indices.iter().find(|&&index| index >= len) {
        Some(&index) => Err(IndexOutOfRange { index, len }),
        None => Ok(()),
    }
}

/// Gathers rows of `width` numbers from a flat table into `[indices.len(), width]`. The indices must have been checked.
pub(super) fn gather(table: &[f32], width: usize, indices: &[usize]) -> Tensor {
    let rows = lockstep_datasets::rows::gather(table, width, indices);
    Tensor::from_slice(&rows).view([indices.len() as i64, width as i64])
}

/// Selected samples of another set, in a given order; `i` refers to sample `indices[i]` of the whole. Shapes are the whole
/// set's. Like `torch.utils.data.Subset`, but indices are checked at construction.
#[derive(Debug, Clone)]
pub struct Subset<D> {
    whole: D,
    indices: Vec<usize>,
}

/// The whole set does not have this part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SubsetError {
    /// An index points past the whole set.
    #[error("make a subset with sample {index} of a data set of {len}: indices run from 0 below the length")]
    Index {
        index: usize,
        /// The number of samples in the whole set.
        len: usize,
    },
    /// A prefix longer than the whole set.
    #[error("take the first {asked} samples of a data set of {len}: ask for {len} or fewer")]
    TooMany {
        asked: usize,
        /// The number of samples in the whole set.
        len: usize,
    },
}

impl<D: Dataset> Subset<D> {
    /// The samples of `whole` at `indices`; an index may appear more than once.
    pub fn new(whole: D, indices: Vec<usize>) -> Result<Self, SubsetError> {
        check_indices(whole.len(), &indices)
            .map_err(|error| SubsetError::Index { index: error.index, len: error.len })?;
        Ok(Self { whole, indices })
    }

    /// The first `count` samples of `whole`.
    ///
    /// Fails when `whole` has fewer: a silently shorter set would make two runs differ.
    pub fn take(whole: D, count: usize) -> Result<Self, SubsetError> {
        if count > whole.len() {
            return Err(SubsetError::TooMany { asked: count, len: whole.len() });
        }
        Ok(Self { whole, indices: (0..count).collect() })
    }

    /// The indices of these samples in the whole set.
    pub fn indices(&self) -> &[usize] {
        &self.indices
    }

    /// The whole set.
    pub fn whole(&self) -> &D {
        &self.whole
    }
}

impl<D: Dataset> Dataset for Subset<D> {
    fn len(&self) -> usize {
        self.indices.len()
    }

    fn leaves_out(&self) -> bool {
        self.whole.leaves_out()
    }

    fn batch(&self, epoch: u64, indices: &[usize]) -> anyhow::Result<Batch> {
        check_indices(self.len(), indices)?;
        let inner: Vec<usize> = indices.iter().map(|&index| self.indices[index]).collect();
        self.whole.batch(epoch, &inner)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Mnist, Subset, Toy};
    use super::*;

    #[test]
    fn names_the_first_index_out_of_range_and_the_length() {
        assert_eq!(check_indices(3, &[0, 2, 1]), Ok(()));
        let error = check_indices(3, &[2, 3, 9]).unwrap_err();
        assert_eq!(error, IndexOutOfRange { index: 3, len: 3 });
        assert!(error.to_string().starts_with("take sample 3 of a data set of 3"), "{error}");
    }

    #[test]
    fn gathers_rows_in_the_order_asked() {
        let rows = gather(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0], 2, &[2, 0, 2]);
        assert_eq!(rows.size(), [3, 2]);
        assert_eq!(Vec::<f32>::try_from(rows.flatten(0, -1)).unwrap(), [4.0, 5.0, 0.0, 1.0, 4.0, 5.0]);
    }

    #[test]
    fn distinguishes_sets_of_the_same_length_by_their_fingerprints() {
        let of = |set: &dyn Dataset| set.fingerprint().unwrap();
        assert_eq!(of(&Toy::new(1, 500)), of(&Arc::new(Toy::new(1, 500))));
        assert_ne!(of(&Toy::new(1, 500)), of(&Toy::new(2, 500)));
        assert_ne!(of(&Toy::new(1, 500)), of(&Toy::new(1, 501)));
        assert_ne!(
            of(&Subset::new(Toy::new(1, 9), vec![1]).unwrap()),
            of(&Subset::new(Toy::new(1, 9), vec![2]).unwrap())
        );
        let digits = |label, pixel| Mnist::new(vec![pixel; 8], vec![0, label], 2, 2).unwrap();
        assert_eq!(of(&digits(1, 5)), of(&digits(1, 5)));
        assert_ne!(of(&digits(1, 5)), of(&digits(2, 5)));
        assert_ne!(of(&digits(1, 5)), of(&digits(1, 6)));
    }

    #[test]
    fn shares_a_set_behind_a_pointer() {
        let set = Toy::new(1, 5);
        let shared: Arc<dyn Dataset> = Arc::new(Arc::new(set.clone()));
        assert_eq!(shared.len(), 5);
        assert_eq!(shared.batch(0, &[4]).unwrap().inputs, set.batch(0, &[4]).unwrap().inputs);
    }

    #[test]
    fn returns_the_chosen_samples_in_order() {
        let whole = Toy::new(1, 10);
        let part = Subset::new(Toy::new(1, 10), vec![7, 3, 7]).unwrap();
        assert_eq!(part.len(), 3);
        let (got, want) = (part.batch(0, &[1, 2]).unwrap(), whole.batch(0, &[3, 7]).unwrap());
        assert_eq!((got.inputs, got.targets), (want.inputs, want.targets));
    }

    #[test]
    fn takes_a_prefix_of_any_length_up_to_the_whole() {
        for count in [0, 1, 9, 10] {
            let part = Subset::take(Toy::new(1, 10), count).unwrap();
            assert_eq!(part.len(), count);
            assert_eq!(part.indices(), (0..count).collect::<Vec<_>>());
        }
    }

    #[test]
    fn rejects_a_prefix_longer_than_the_whole() {
        let error = Subset::take(Toy::new(1, 10), 11).unwrap_err();
        assert_eq!(error, SubsetError::TooMany { asked: 11, len: 10 });
    }

    #[test]
    fn rejects_an_index_of_the_whole_that_is_out_of_range() {
        let error = Subset::new(Toy::new(1, 10), vec![0, 10]).unwrap_err();
        assert_eq!(error, SubsetError::Index { index: 10, len: 10 });
    }

    #[test]
    fn names_its_own_length_when_a_batch_goes_past_it() {
        let part = Subset::take(Toy::new(1, 10), 4).unwrap();
        let error = part.batch(0, &[0, 4]).unwrap_err().to_string();
        assert!(error.starts_with("take sample 4 of a data set of 4"), "{error}");
    }
}
