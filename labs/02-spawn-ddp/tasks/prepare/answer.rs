//! Task 5: once for all ranks. Spot the bug.
//!
//! Before the first step, the data must be on disk: a folder that contains a downloaded file. All ranks of a machine share its
//! disk.

use std::fs;
use std::path::Path;

use anyhow::Result;
use c10d::ProcessGroup;

use crate::download::Download;

/// Creates the folder, downloads the file `digits` into it, and returns the text that this rank reads from it.
pub fn prepare(group: &ProcessGroup, folder: &Path, download: &Download) -> Result<String> {
    let file = folder.join("digits");
    // <answer>
    //~ fs::create_dir_all(folder)?;
    //~ download.to(&file)?;
    if group.rank().is_zero() {
        fs::create_dir_all(folder)?;
        download.to(&file)?;
    }
    group.barrier()?;
    // </answer>
    Ok(fs::read_to_string(file)?)
}
