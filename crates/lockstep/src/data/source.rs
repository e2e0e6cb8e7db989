//! Where labs get their data: real files if there are any, otherwise drawn data.

use std::path::{Path, PathBuf};

use super::{Digits, Mnist, Split};

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
