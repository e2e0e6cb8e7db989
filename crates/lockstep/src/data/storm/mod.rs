//! skeleton
use super::Split;
use image::RgbImage;
use std::path::Path;

/// The grades of damage, the names of the class folders: intact, damaged, destroyed.
pub const CLASSES: [&str; 3] = ["C0", "C2", "C4"];

/// Photographs of houses after a storm, drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Storm {
    seed: u64,
    split: u64,
}

impl Storm {
    /// The houses of this seed; the two splits share none.
    pub fn new(seed: u64, split: Split) -> Self {
        Self { seed, split: split as u64 }
    }
}
