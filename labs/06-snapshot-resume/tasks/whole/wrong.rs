//! Answers to `whole`: wrong ones, and unusual right ones.

use std::io::{BufWriter, Result, Write};
use std::path::Path;

use lockstep_answers::edit;

use crate::disk::{File, remove_file, rename, write};

/// Writes directly to the only copy, as `torch.save` does.
pub fn straight(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Removes the old snapshot before the new one has its name.
pub fn removes(path: &Path, bytes: &[u8]) -> Result<()> {
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

/// Gives the temporary file the name of a snapshot.
#[edit(path.with_file_name(".snapshot.partial") => path.with_extension("new.safetensors"))]
pub fn named() {}

/// Creates the temporary file in the system's temporary folder, which may be on another disk.
#[edit(path.with_file_name(".snapshot.partial") => std::env::temp_dir().join("snapshot.partial"))]
pub fn elsewhere() {}

/// Renames the file before its bytes are on disk.
pub fn unsynced(path: &Path, bytes: &[u8]) -> Result<()> {
    let partial = path.with_extension("partial");
    write(&partial, bytes)?;
    rename(&partial, path)?;
    File::open(path.parent().unwrap())?.sync_all()
}

/// Does not sync the folder.
pub fn name_unsynced(path: &Path, bytes: &[u8]) -> Result<()> {
    let partial = path.with_extension("partial");
    let mut file = File::create(&partial)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    rename(&partial, path)
}

/// Right: writes in pieces, names the file by process id, and also syncs the folder before the rename.
pub fn chunks(path: &Path, bytes: &[u8]) -> Result<()> {
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

/// Creates its temporary file again, and fails where a killed save has left one.
#[edit(path.with_file_name(".snapshot.partial") => path.with_extension("tmp"))]
#[edit(File::create => File::create_new)]
pub fn create_new() {}
