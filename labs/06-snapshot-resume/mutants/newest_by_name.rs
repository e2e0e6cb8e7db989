//! Sorted as text: `snapshot-9-0` is behind `snapshot-10-0`.

use std::fs;
use std::io::{ErrorKind, Result};
use std::path::{Path, PathBuf};

use crate::files::{position, read};

pub fn newest(folder: &Path) -> Result<Option<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        entries => entries?,
    };
    let mut paths: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    paths.retain(|path| position(path).is_some());
    paths.sort();
    Ok(paths.into_iter().rev().find(|path| read(path).is_ok()))
}
