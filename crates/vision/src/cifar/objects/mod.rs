//! Objects drawn on the spot in the manner of CIFAR-10's, so that its lab runs without a download.
//!
//! They stand in for the photographs in shape, in classes, in file format and in what it takes to learn them: colour and
//! surroundings say something, outlines say the rest, and four of the animals look much alike. Accuracy figures are for the real
//! files. What the things look like is in `things`, what surrounds them in `scene`, the drawing in `draw`.

mod draw;
mod scene;
mod things;

use super::{Cifar10, RECORD};
use lockstep::data::Split;
use lockstep::data::rng::KeyedRng;

/// Keep the random streams of labels and pictures apart.
const LABELS: u64 = u64::from_be_bytes(*b"oblabels");
const PICTURES: u64 = u64::from_be_bytes(*b"obpixels");

/// The objects of one seed and split: endless, each a function of (seed, split, index) alone.
///
/// ```
/// use lockstep::data::{Objects, Split};
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
    /// When `count` is 0.
    pub fn first(self, count: usize) -> Cifar10 {
        let records = (0..count).flat_map(|index| self.record(index)).collect();
        Cifar10::new(records).expect("one whole record or more was drawn, with labels below 10")
    }

    /// What object number `index` is. Every ten in a row (0 to 9, 10 to 19, …) hold each class once, in random order.
    pub fn kind(self, index: usize) -> u8 {
        let mut rng = KeyedRng::new(&[self.seed, LABELS, self.split, (index / 10) as u64]);
        rng.shuffled::<10>()[index % 10]
    }

    /// Object number `index` as a record of the file.
    fn record(self, index: usize) -> [u8; RECORD] {
        let kind = self.kind(index);
        let mut rng = KeyedRng::new(&[self.seed, PICTURES, self.split, index as u64]);
        draw::record(kind, &mut rng)
    }
}
