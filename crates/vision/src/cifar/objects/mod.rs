//! Objects drawn on the spot in the style of CIFAR-10, so that its lab runs without a download.
//!
//! They replace the photographs in shape, classes, file format and difficulty: colour and surroundings carry some information,
//! outlines the rest, and four of the animals look much alike. Accuracies are not comparable with those on the real files.
//! `things` describes the objects, `scene` their surroundings, `draw` renders them.

mod draw;
mod scene;
mod things;

use super::{Cifar10, RECORD};
use lockstep::data::Split;
use lockstep::data::rng::KeyedRng;

/// Keep the random streams of labels and pictures apart.
const LABELS: u64 = u64::from_be_bytes(*b"oblabels");
const PICTURES: u64 = u64::from_be_bytes(*b"obpixels");

/// The objects of one seed and split: an endless sequence, each a function of (seed, split, index) alone.
///
/// ```
/// use lockstep::data::Split;
/// use lockstep_vision::Objects;
/// let objects = Objects::new(42, Split::Train);
/// assert_eq!(objects.first(100).kind(99), objects.kind(99));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Objects {
    seed: u64,
    split: u64,
}

impl Objects {
    /// The objects of this seed; the two splits share none.
    pub fn new(seed: u64, split: Split) -> Self {
        Self { seed, split: split as u64 }
    }

    /// The first `count` of these objects, as a data set.
    ///
    /// # Panics
    /// Panics when `count` is 0.
    pub fn first(self, count: usize) -> Cifar10 {
        let records = (0..count).flat_map(|index| self.record(index)).collect();
        Cifar10::new(records).expect("one whole record or more was drawn, with labels below 10")
    }

    /// The class of object `index`. Every ten in a row (0 to 9, 10 to 19, …) contain each class once, in random order.
    pub fn kind(self, index: usize) -> u8 {
        let mut rng = KeyedRng::new(&[self.seed, LABELS, self.split, (index / 10) as u64]);
        rng.shuffled::<10>()[index % 10]
    }

    /// Object `index` as a record of the file.
    fn record(self, index: usize) -> [u8; RECORD] {
        let kind = self.kind(index);
        let mut rng = KeyedRng::new(&[self.seed, PICTURES, self.split, index as u64]);
        draw::record(kind, &mut rng)
    }
}
