//! When the newest is torn, training begins anew.

use std::fs;
use std::io::{ErrorKind, Result};
use std::path::{Path, PathBuf};

use crate::files::{position, read};

pub fn newest(folder: &Path) -> Result<Option<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        entries => entries?,
    };
    let paths: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    let newest = paths.into_iter().filter(|path| position(path).is_some()).max_by_key(|path| position(path));
    Ok(newest.filter(|path| read(path).is_ok()))
}
