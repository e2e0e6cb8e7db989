//! Straight onto the only copy, as `torch.save` does.

use std::io::{Result, Write};
use std::path::Path;

use crate::disk::File;

pub fn whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}
