//! A part of a data set: labs use lengths that do not divide evenly, and separate training from validation.

use super::{Batch, Dataset, check_indices};

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
        /// The requested index.
        index: usize,
        /// The number of samples in the whole set.
        len: usize,
    },
    /// A prefix longer than the whole set.
    #[error("take the first {asked} samples of a data set of {len}: ask for {len} or fewer")]
    TooMany {
        /// The requested number.
        asked: usize,
        /// The number of samples in the whole set.
        len: usize,
    },
}

impl<D: Dataset> Subset<D> {
    /// The samples of `whole` at `indices`; an index may appear more than once.
    ///
    /// # Errors
    /// Fails when an index is not below the length of `whole`.
    pub fn new(whole: D, indices: Vec<usize>) -> Result<Self, SubsetError> {
        check_indices(whole.len(), &indices)
            .map_err(|error| SubsetError::Index { index: error.index, len: error.len })?;
        Ok(Self { whole, indices })
    }

    /// The first `count` samples of `whole`.
    ///
    /// # Errors
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
    use super::*;
    use crate::data::Toy;

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
