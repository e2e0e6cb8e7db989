//! The temporary file is named as a snapshot is.

use std::io::{Result, Write};
use std::path::Path;

use crate::disk::{File, rename};

pub fn whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let partial = path.with_extension("new.safetensors");
    let mut file = File::create(&partial)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    rename(&partial, path)?;
    File::open(path.parent().unwrap())?.sync_all()
}
