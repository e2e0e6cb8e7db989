//! Photographs on disk and the pipeline from there to a network's inputs, as in the damage classifier's loader.
//!
//! `lockstep measure loader` loads the same photographs, and so does torchvision in `harness/bench/src/python/pictures.py`.
//! Leaves out timing.
#![allow(dead_code, unreachable_pub)] // each program uses its part

use std::path::Path;
use std::sync::Arc;

use lockstep::data::Dataset;
use lockstep::loader::DataLoader;
use lockstep::sampler::RandomSampler;
use lockstep_vision::{AutoAugment, DecodedCache, DrawnHouses, ImageFolder, Normalize, Pipeline, Resize, Transformed};

/// Width and height of a photograph.
pub const SIZE: (u32, u32) = (640, 480);
/// Samples in a batch.
pub const BATCH: usize = 32;
/// Pixels along each side of a network's input, as in the tutorial.
pub const SIDE: u32 = 244;

/// Bytes of decoded photographs that are kept.
const CACHE: u64 = 1 << 32;

/// Draws `count` photographs of houses as JPEG files of quality 90 into a folder per class, and returns their parent folder.
pub fn draw(folder: &Path, count: usize) -> anyhow::Result<std::path::PathBuf> {
    DrawnHouses::write(folder, 1, (count, 3), &[SIZE])?;
    Ok(folder.join("Train"))
}

/// Decode (or take from the cache in a folder), AutoAugment (optional), resize, and normalise.
pub fn set(folder: &Path, cache: Option<&Path>, augment: bool) -> anyhow::Result<Transformed<ImageFolder>> {
    let pipeline = if augment { Pipeline::new().then(AutoAugment::imagenet()) } else { Pipeline::new() };
    let pipeline = pipeline.then(Resize { width: SIDE, height: SIDE });
    let mut pictures = ImageFolder::open(folder)?;
    if let Some(cache) = cache {
        let cache = DecodedCache::open(cache, CACHE, |message| eprintln!("warning: {message}"))?;
        pictures = pictures.cached(Arc::new(cache));
    }
    Ok(Transformed::new(pictures, Normalize::IMAGENET).pipeline(pipeline))
}

/// A loader of shuffled batches.
pub fn loader(set: Arc<dyn Dataset>, workers: usize) -> anyhow::Result<DataLoader> {
    let sampler = RandomSampler::new(set.len());
    Ok(DataLoader::new(set, sampler, BATCH)?.workers(workers))
}
