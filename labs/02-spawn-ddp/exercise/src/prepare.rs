//! Task 5: once for all ranks. Spot the bug.
//!
//! Before the first step the data must be there: a folder, and in it a file from far away. The ranks of a machine share its
//! disk.

use std::fs;
use std::path::Path;

use anyhow::Result;
use c10d::ProcessGroup;

use crate::download::Download;

/// Makes the folder, with the file `digits` in it, and returns what this rank reads there.
pub fn prepare(group: &ProcessGroup, folder: &Path, download: &Download) -> Result<String> {
    let file = folder.join("digits");
    fs::create_dir_all(folder)?;
    download.to(&file)?;
    Ok(fs::read_to_string(file)?)
}
