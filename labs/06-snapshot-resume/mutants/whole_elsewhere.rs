//! The temporary file is in the system's folder for such, which may be on another disk.

use std::io::{Result, Write};
use std::path::Path;

use crate::disk::{File, rename};

pub fn whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let partial = std::env::temp_dir().join("snapshot.partial");
    let mut file = File::create(&partial)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    rename(&partial, path)?;
    File::open(path.parent().unwrap())?.sync_all()
}
