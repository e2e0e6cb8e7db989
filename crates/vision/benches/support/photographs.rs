//! Photographs on disk and the pipeline from there to a network's inputs, as in the damage classifier's loader.
//!
//! `scripts/bench/pictures.py` does the same with Python's torchvision. Leaves out timing.
#![allow(dead_code, unreachable_pub)] // each program uses its part

use std::path::Path;
use std::sync::Arc;

use lockstep::data::Dataset;
use lockstep::loader::DataLoader;
use lockstep::sampler::RandomSampler;
use lockstep_vision::{AutoAugment, ImageFolder, Normalize, Pipeline, Resize, Storm, Transformed};

/// Width and height of a photograph.
pub const SIZE: (u32, u32) = (640, 480);
/// Samples in a batch.
pub const BATCH: usize = 32;
/// Pixels along each side of a network's input, as in the tutorial.
pub const SIDE: u32 = 244;

/// Draws `count` photographs of houses as JPEG files of quality 90 into a folder per class, and returns their parent folder.
pub fn draw(folder: &Path, count: usize) -> anyhow::Result<std::path::PathBuf> {
    Storm::write(folder, 1, (count, 3), &[SIZE])?;
    Ok(folder.join("Train"))
}

/// Decode, AutoAugment (optional), resize, and normalise.
pub fn set(folder: &Path, augment: bool) -> anyhow::Result<Transformed<ImageFolder>> {
    let pipeline = if augment { Pipeline::new().then(AutoAugment::imagenet()) } else { Pipeline::new() };
    let pipeline = pipeline.then(Resize { width: SIDE, height: SIDE });
    Ok(Transformed::new(ImageFolder::open(folder)?, Normalize::IMAGENET).pipeline(pipeline))
}

/// A loader of shuffled batches.
pub fn loader(set: Arc<dyn Dataset>, workers: usize) -> anyhow::Result<DataLoader> {
    let sampler = RandomSampler::new(set.len());
    Ok(DataLoader::new(set, sampler, BATCH)?.workers(workers))
}
