//! Some of the houses as a labelled set of pictures in memory; each is drawn on demand.

use super::{CLASSES, Storm};
use crate::{Pictures, RgbImage};

/// The first houses of a seed and split, in photographs of one size: the result of [`Storm::first`].
#[derive(Debug, Clone)]
pub struct Houses {
    storm: Storm,
    count: usize,
    /// Width and height.
    size: (u32, u32),
    classes: Vec<String>,
}

impl Houses {
    pub(super) fn new(storm: Storm, count: usize, size: (u32, u32)) -> Self {
        Houses { storm, count, size, classes: CLASSES.map(String::from).to_vec() }
    }
}

impl Pictures for Houses {
    fn len(&self) -> usize {
        self.count
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn label(&self, index: usize) -> i64 {
        self.storm.label(index)
    }

    fn picture(&self, index: usize) -> anyhow::Result<RgbImage> {
        let (width, height) = self.size;
        Ok(self.storm.picture(index, width, height))
    }

    /// Covers everything that the pictures depend on: seed, split, count and size.
    fn fingerprint(&self) -> anyhow::Result<u32> {
        let Storm { seed, split } = self.storm;
        let mut hasher = crc32fast::Hasher::new();
        for number in [seed, split, self.count as u64, self.size.0.into(), self.size.1.into()] {
            hasher.update(&number.to_le_bytes());
        }
        Ok(hasher.finalize())
    }
}
