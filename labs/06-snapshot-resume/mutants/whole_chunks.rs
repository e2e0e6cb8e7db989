//! Right: in pieces, to a name of this process's own, and the folder is synced before as well.

use std::io::{BufWriter, Result, Write};
use std::path::Path;

use crate::disk::{File, rename};

pub fn whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let folder = path.parent().unwrap();
    let partial = folder.join(format!("{}.tmp", std::process::id()));
    let mut writer = BufWriter::new(File::create_new(&partial)?);
    for chunk in bytes.chunks(1000) {
        writer.write_all(chunk)?;
    }
    let file = writer.into_inner()?;
    file.sync_data()?;
    File::open(folder)?.sync_all()?;
    rename(partial, path)?;
    File::open(folder)?.sync_all()
}
