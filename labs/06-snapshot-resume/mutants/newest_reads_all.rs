//! Right, and slower: reads all of them.

use std::path::{Path, PathBuf};

use crate::files::{position, read};

pub fn newest(folder: &Path) -> std::io::Result<Option<PathBuf>> {
    if !folder.exists() {
        return Ok(None);
    }
    let mut best = None;
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let Some(place) = position(&path) else { continue };
        if read(&path).is_ok() && best.as_ref().is_none_or(|(best, _)| place > *best) {
            best = Some((place, path));
        }
    }
    Ok(best.map(|(_, path)| path))
}
