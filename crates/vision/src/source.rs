//! Where labs get their pictures: real files if there are any, else drawn ones.

use std::path::Path;
use std::sync::Arc;

use lockstep::data::Split;

use crate::folder::Splits;
use crate::{Cifar10, DecodedCache, DrawnHouses, Objects, Pictures};

/// Width and height of drawn photographs.
const PHOTOGRAPH: (u32, u32) = (96, 72);

/// Training and test pictures: CIFAR-10's files in `dir`, or, without one, drawn objects (`train` and `test` of them, at least
/// one each) of this seed.
pub fn cifar_or_drawn(dir: Option<&Path>, seed: u64, train: usize, test: usize) -> anyhow::Result<(Cifar10, Cifar10)> {
    match dir {
        Some(dir) => Ok((Cifar10::from_dir(dir, Split::Train)?, Cifar10::from_dir(dir, Split::Test)?)),
        None => Ok((Objects::new(seed, Split::Train).first(train), Objects::new(seed, Split::Test).first(test))),
    }
}

/// Photographs of houses after a storm, all with the same classes.
pub struct HouseSplits {
    /// The photographs to train on.
    pub train: Box<dyn Pictures>,
    /// The photographs that select the best model.
    pub validation: Box<dyn Pictures>,
    /// The photographs that select nothing, if there are any.
    pub test: Option<Box<dyn Pictures>>,
    /// Warnings about files that were skipped.
    pub notes: Vec<String>,
}

/// The photographs of `dir`, as [`Splits::open`] finds them, through `cache` if there is one, or, without a folder, drawn
/// ones: `train` to train on and `validation`.
pub fn houses_or_drawn(
    dir: Option<&Path>,
    cache: Option<DecodedCache>,
    seed: u64,
    train: usize,
    validation: usize,
) -> anyhow::Result<HouseSplits> {
    let Some(dir) = dir else {
        let (width, height) = PHOTOGRAPH;
        let drawn = |split, count| Box::new(DrawnHouses::new(seed, split).first(count, width, height));
        let (train, validation) = (drawn(Split::Train, train), drawn(Split::Test, validation));
        return Ok(HouseSplits { train, validation, test: None, notes: Vec::new() });
    };
    let mut splits = Splits::open(dir)?;
    if let Some(cache) = cache {
        splits = splits.cached(&Arc::new(cache));
    }
    let notes = splits.skip_summaries();
    let Splits { train, validation, test } = splits;
    let test = test.map(|test| Box::new(test) as Box<dyn Pictures>);
    Ok(HouseSplits { train: Box::new(train), validation: Box::new(validation), test, notes })
}
