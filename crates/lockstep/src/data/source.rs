//! Where the labs get their pictures: real files if there are any, else drawn ones.

use std::path::Path;

use super::{Cifar10, Digits, Mnist, Objects, Split};

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
