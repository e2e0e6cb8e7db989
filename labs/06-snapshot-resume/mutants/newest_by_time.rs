//! By the time of the last change, which a copy sets anew.

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
    paths.sort_by_key(|path| fs::metadata(path).and_then(|data| data.modified()).ok());
    Ok(paths.into_iter().rev().find(|path| read(path).is_ok()))
}
