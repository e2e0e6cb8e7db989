//! The folder is not synced.

use std::io::{Result, Write};
use std::path::Path;

use crate::disk::{File, rename};

pub fn whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let partial = path.with_extension("partial");
    let mut file = File::create(&partial)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    rename(&partial, path)
}
