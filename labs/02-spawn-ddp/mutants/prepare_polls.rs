//! The others wait until the file exists, which is when the download begins.

use std::fs;
use std::path::Path;
use std::time::Duration;

use c10d::ProcessGroup;

use crate::download::Download;

pub fn prepare(group: &ProcessGroup, folder: &Path, download: &Download) -> anyhow::Result<String> {
    let file = folder.join("digits");
    if group.rank().is_zero() {
        fs::create_dir_all(folder)?;
        download.to(&file)?;
    }
    while fs::metadata(&file).map_or(0, |data| data.len()) == 0 {
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(fs::read_to_string(file)?)
}
