//! Handwriting-like digits drawn on the spot, so that the MNIST labs run without a download.
//!
//! They replace MNIST in shape, file format and difficulty (a convolutional network learns them well, a linear one does not).
//! Accuracies are not comparable with those on the real files.

use std::path::{Path, PathBuf};

use anyhow::Context;
use lockstep_datasets::digits;
use lockstep_datasets::digits::PIXELS;
pub use lockstep_datasets::digits::SIDE;

use crate::data::mnist::{Mnist, Split};

/// The digits of one seed and split: an endless sequence, each a function of (seed, split, index) alone.
///
/// ```
/// use lockstep::data::{Digits, Split};
/// let digits = Digits::new(42, Split::Train);
/// let set = Digits::generate(42, 100);
/// assert_eq!(set.image(99), digits.image(99));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Digits {
    seed: u64,
    split: Split,
}

impl Digits {
    /// The digits of this seed; the two splits share none.
    pub fn new(seed: u64, split: Split) -> Self {
        Self { seed, split }
    }

    /// The first `count` training digits of a seed, as a data set of 28 x 28 pictures.
    pub fn generate(seed: u64, count: usize) -> Mnist {
        Self::new(seed, Split::Train).first(count)
    }

    /// The first `count` of these digits, as a data set of 28 x 28 pictures.
    pub fn first(self, count: usize) -> Mnist {
        let images = digits::images(self.seed, self.split, count);
        let labels = (0..count).map(|index| self.label(index)).collect();
        Mnist::new(images, labels, SIDE, SIDE).expect("as many labels as whole pictures were drawn, all below 10")
    }

    /// Writes `train` training and `test` test digits as MNIST's four gzipped files to `dir`, which is created if it does not
    /// exist. Each file is written atomically.
    pub fn write_idx(dir: &Path, seed: u64, train: usize, test: usize) -> anyhow::Result<()> {
        std::fs::create_dir_all(dir).with_context(|| format!("make the folder {}", dir.display()))?;
        Self::new(seed, Split::Train).first(train).write_idx(dir, Split::Train)?;
        Self::new(seed, Split::Test).first(test).write_idx(dir, Split::Test)?;
        Ok(())
    }

    /// The class of digit `index`. Every ten in a row (0 to 9, 10 to 19, …) contain each digit once, in random order, so that
    /// small sets are balanced and every second sample is not a biased choice.
    pub fn label(self, index: usize) -> u8 {
        digits::label(self.seed, self.split, index)
    }

    /// The picture of digit `index`: 28 x 28 pixels row by row, from 0 for paper to 255 for ink.
    pub fn image(self, index: usize) -> [u8; PIXELS] {
        digits::image(self.seed, self.split, index)
    }
}

/// Training and test digits: the files of `dir`, or, without one, drawn digits (`train` and `test` of them) of this seed.
pub fn mnist_or_drawn(dir: Option<&Path>, seed: u64, train: usize, test: usize) -> anyhow::Result<(Mnist, Mnist)> {
    match dir {
        Some(dir) => Ok((Mnist::from_dir(dir, Split::Train)?, Mnist::from_dir(dir, Split::Test)?)),
        None => Ok((Digits::new(seed, Split::Train).first(train), Digits::new(seed, Split::Test).first(test))),
    }
}

/// Where real data is on this machine, **for tests**: the folder that holds `mnist/` and others.
///
/// The value of `LOCKSTEP_DATA` if it is set, otherwise the folder `shared/data` next to the checkout if it exists. A test
/// without data prints "not verified here: …" and passes.
pub fn real_data_dir() -> Option<PathBuf> {
    if let Some(dir) = std::env::var_os("LOCKSTEP_DATA") {
        return Some(PathBuf::from(dir));
    }
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2)?;
    Some(workspace.parent()?.join("shared/data")).filter(|dir| dir.is_dir())
}

#[cfg(test)]
mod tests {
    use super::super::Dataset;
    use super::*;

    #[test]
    fn draws_the_same_digit_whatever_was_drawn_before() {
        let digits = Digits::new(7, Split::Train);
        let long = Digits::generate(7, 60);
        assert_eq!(Digits::generate(7, 21), digits.first(21));
        for index in [59, 0, 20, 20] {
            assert_eq!((long.image(index), long.labels()[index]), (&digits.image(index)[..], digits.label(index)));
        }
    }

    #[test]
    fn draws_other_digits_for_another_seed_or_split() {
        let pictures: Vec<_> = [(1, Split::Train), (1, Split::Test), (2, Split::Train)]
            .map(|(seed, split)| Digits::new(seed, split).first(10))
            .into();
        assert!(pictures[0] != pictures[1] && pictures[0] != pictures[2] && pictures[1] != pictures[2]);
    }

    #[test]
    fn keeps_the_bytes_of_a_seed_forever() {
        let set = Digits::generate(42, 1_000);
        let all = (0..1_000).flat_map(|index| set.image(index));
        let fnv = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        assert_eq!(&set.labels()[..10], [9, 3, 8, 7, 4, 0, 2, 6, 5, 1]);
        assert_eq!(all.fold(0xcbf2_9ce4_8422_2325, fnv), 7_835_049_042_576_661_042);
    }

    #[test]
    fn holds_each_digit_once_in_every_ten() {
        let set = Digits::generate(3, 200);
        for ten in set.labels().chunks(10) {
            let mut sorted = ten.to_vec();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..10).collect::<Vec<u8>>());
        }
        assert_ne!(set.labels()[..10], set.labels()[10..20]);
    }

    #[test]
    fn keeps_the_ink_inside_the_picture() {
        let set = Digits::generate(11, 2_000);
        let edge = |i: usize| [i / SIDE, i % SIDE].iter().any(|&at| at == 0 || at == SIDE - 1);
        let (mut inked, mut at_edge) = (0usize, 0usize);
        for index in 0..set.len() {
            let picture = set.image(index);
            let ink = picture.iter().filter(|&&grey| grey > 127).count();
            assert!((15..400).contains(&ink), "digit {index} has {ink} inked pixels");
            inked += ink;
            at_edge += (0..PIXELS).filter(|&i| edge(i) && picture[i] > 127).count();
        }
        assert!(at_edge * 500 < inked, "{at_edge} of {inked} inked pixels are at the edge");
    }

    #[test]
    fn writes_the_four_files_of_mnist() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("made/here");
        Digits::write_idx(&dir, 5, 30, 20).unwrap();
        assert_eq!(Mnist::from_dir(&dir, Split::Train).unwrap(), Digits::generate(5, 30));
        assert_eq!(Mnist::from_dir(&dir, Split::Test).unwrap(), Digits::new(5, Split::Test).first(20));
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 4);
    }

    #[test]
    fn names_the_folder_that_it_cannot_make() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = Digits::write_idx(&file.path().join("inside"), 5, 1, 1).unwrap_err();
        assert!(error.to_string().starts_with("make the folder "), "{error}");
    }
}
