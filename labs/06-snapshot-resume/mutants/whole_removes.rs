//! The old snapshot is removed before the new one has its name.

use std::io::{Result, Write};
use std::path::Path;

use crate::disk::{File, remove_file, rename};

pub fn whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let partial = path.with_extension("partial");
    let mut file = File::create(&partial)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    if path.exists() {
        remove_file(path)?;
    }
    rename(&partial, path)?;
    File::open(path.parent().unwrap())?.sync_all()
}
