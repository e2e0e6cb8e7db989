//! Where labs get their data: real files if there are any, else drawn ones.

use std::path::{Path, PathBuf};

use super::folder::Splits;
use super::vision::Pictures;
use super::{Cifar10, Digits, Mnist, Objects, Split, Storm};

/// Width and height of drawn photographs.
const PHOTOGRAPH: (u32, u32) = (96, 72);

/// Training and test digits: the files of `dir`, or, without one, drawn digits (`train` and `test` of them) of this seed.
///
/// # Errors
/// A folder without the four files, or files that are not what they should be.
pub fn mnist_or_drawn(dir: Option<&Path>, seed: u64, train: usize, test: usize) -> anyhow::Result<(Mnist, Mnist)> {
    match dir {
        Some(dir) => Ok((Mnist::from_dir(dir, Split::Train)?, Mnist::from_dir(dir, Split::Test)?)),
        None => Ok((Digits::new(seed, Split::Train).first(train), Digits::new(seed, Split::Test).first(test))),
    }
}

/// Training and test pictures: CIFAR-10's files in `dir`, or, without one, drawn objects (`train` and `test` of them, one at
/// least) of this seed.
///
/// # Errors
/// A folder without CIFAR-10's binary files, or files that are not what they should be.
pub fn cifar_or_drawn(dir: Option<&Path>, seed: u64, train: usize, test: usize) -> anyhow::Result<(Cifar10, Cifar10)> {
    match dir {
        Some(dir) => Ok((Cifar10::from_dir(dir, Split::Train)?, Cifar10::from_dir(dir, Split::Test)?)),
        None => Ok((Objects::new(seed, Split::Train).first(train), Objects::new(seed, Split::Test).first(test))),
    }
}

/// Photographs of houses after a storm, all with the same classes.
pub struct HouseSplits {
    /// Those to learn from.
    pub train: Box<dyn Pictures>,
    /// Those that choose the best model.
    pub validation: Box<dyn Pictures>,
    /// Those that choose nothing, if there are any.
    pub test: Option<Box<dyn Pictures>>,
    /// What to warn of: files that were passed over.
    pub notes: Vec<String>,
}

/// The photographs of `dir`, as [`Splits::open`] finds them, or, without one, drawn ones: `train` to learn from and `validation`.
///
/// # Errors
/// A folder that does not hold what it should.
pub fn houses_or_drawn(dir: Option<&Path>, seed: u64, train: usize, validation: usize) -> anyhow::Result<HouseSplits> {
    let Some(dir) = dir else {
        let (width, height) = PHOTOGRAPH;
        let drawn = |split, count| Box::new(Storm::new(seed, split).first(count, width, height));
        let (train, validation) = (drawn(Split::Train, train), drawn(Split::Test, validation));
        return Ok(HouseSplits { train, validation, test: None, notes: Vec::new() });
    };
    let splits = Splits::open(dir)?;
    let notes = splits.passed_over();
    let Splits { train, validation, test } = splits;
    let test = test.map(|test| Box::new(test) as Box<dyn Pictures>);
    Ok(HouseSplits { train: Box::new(train), validation: Box::new(validation), test, notes })
}

/// Where real data lies on this machine, **for tests**: the folder that holds `mnist/` and its like.
///
/// It is the value of `LOCKSTEP_DATA` when that is set, else the folder `shared/data` beside the checkout when there is
/// one. A test that finds none prints "not verified here: …" and passes.
pub fn real_data_dir() -> Option<PathBuf> {
    if let Some(dir) = std::env::var_os("LOCKSTEP_DATA") {
        return Some(PathBuf::from(dir));
    }
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2)?;
    Some(workspace.parent()?.join("shared/data")).filter(|dir| dir.is_dir())
}
