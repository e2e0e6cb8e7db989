//! Where labs get their data: real files if there are any, otherwise drawn data.

use std::path::{Path, PathBuf};

use super::folder::Splits;
use super::vision::Pictures;
use super::{Cifar10, Digits, Mnist, Objects, Split, Storm};

/// Width and height of drawn photographs.
const PHOTOGRAPH: (u32, u32) = (96, 72);

/// Training and test digits: the files of `dir`, or, without one, drawn digits (`train` and `test` of them) of this seed.
///
/// # Errors
/// Fails when the folder lacks the four files, or when they are invalid.
pub fn mnist_or_drawn(dir: Option<&Path>, seed: u64, train: usize, test: usize) -> anyhow::Result<(Mnist, Mnist)> {
    match dir {
        Some(dir) => Ok((Mnist::from_dir(dir, Split::Train)?, Mnist::from_dir(dir, Split::Test)?)),
        None => Ok((Digits::new(seed, Split::Train).first(train), Digits::new(seed, Split::Test).first(test))),
    }
}

/// Training and test pictures: CIFAR-10's files in `dir`, or, without one, drawn objects (`train` and `test` of them, at least
/// one each) of this seed.
///
/// # Errors
/// Fails when the folder lacks CIFAR-10's binary files, or when they are invalid.
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

/// The photographs of `dir`, as [`Splits::open`] finds them, or, without one, drawn ones: `train` to train on and `validation`.
///
/// # Errors
/// Fails when the folder does not have the expected contents.
pub fn houses_or_drawn(dir: Option<&Path>, seed: u64, train: usize, validation: usize) -> anyhow::Result<HouseSplits> {
    let Some(dir) = dir else {
        let (width, height) = PHOTOGRAPH;
        let drawn = |split, count| Box::new(Storm::new(seed, split).first(count, width, height));
        let (train, validation) = (drawn(Split::Train, train), drawn(Split::Test, validation));
        return Ok(HouseSplits { train, validation, test: None, notes: Vec::new() });
    };
    let splits = Splits::open(dir)?;
    let notes = splits.skip_summaries();
    let Splits { train, validation, test } = splits;
    let test = test.map(|test| Box::new(test) as Box<dyn Pictures>);
    Ok(HouseSplits { train: Box::new(train), validation: Box::new(validation), test, notes })
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
