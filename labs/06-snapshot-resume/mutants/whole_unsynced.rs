//! Renamed while the bytes may still be in the kernel's memory alone.

use std::io::Result;
use std::path::Path;

use crate::disk::{File, rename, write};

pub fn whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let partial = path.with_extension("partial");
    write(&partial, bytes)?;
    rename(&partial, path)?;
    File::open(path.parent().unwrap())?.sync_all()
}
