//! Without a folder, which is how every run begins, there is an error.

use std::fs;
use std::io::Result;
use std::path::{Path, PathBuf};

use crate::files::{position, read};

pub fn newest(folder: &Path) -> Result<Option<PathBuf>> {
    let paths: Vec<PathBuf> = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    let good = paths.into_iter().filter(|path| position(path).is_some() && read(path).is_ok());
    Ok(good.max_by_key(|path| position(path)))
}
