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
#[edit(rename(&partial, path)?; => if path.exists() { remove_file(path)?; } rename(&partial, path)?;)]
pub fn removes() {}

/// Gives the temporary file the name of a snapshot.
#[edit(path.with_file_name(".snapshot.partial") => path.with_extension("new.safetensors"))]
pub fn named() {}

/// Creates the temporary file in the system's temporary folder, which may be on another disk.
#[edit(path.with_file_name(".snapshot.partial") => std::env::temp_dir().join("snapshot.partial"))]
pub fn elsewhere() {}

/// Renames the file before its bytes are on disk.
#[edit(file.sync_all()?; => )]
pub fn unsynced() {}

/// Does not sync the folder.
#[edit(rename(&partial, path)?; File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all() => rename(&partial, path))]
pub fn name_unsynced() {}

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

/// Gives the old snapshot another name first.
#[edit(rename(&partial, path)?; => let _ = rename(path, path.with_extension("bak")); rename(&partial, path)?;)]
pub fn backup() {}

/// Ignores that the disk is full.
#[edit(file.write_all(bytes)?; => let _ = file.write_all(bytes);)]
pub fn full_disk() {}

/// Ignores that the bytes cannot be synced.
#[edit(file.sync_all()?; => file.sync_all().ok();)]
pub fn failed_sync() {}

/// Ignores that the folder cannot be synced.
#[edit(File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all() => {
    let _ = File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all();
    Ok(())
})]
pub fn failed_folder_sync() {}

/// Writes once, which may write a part.
#[edit(file.write_all(bytes)?; => let _ = file.write(bytes)?;)]
pub fn writes_once() {}

/// Syncs the file while bytes are still in the writer's buffer.
pub fn buffered(path: &Path, bytes: &[u8]) -> Result<()> {
    let partial = path.with_extension("part");
    let mut writer = BufWriter::with_capacity(bytes.len() + 1, File::create(&partial)?);
    writer.write_all(bytes)?;
    writer.get_ref().sync_all()?;
    drop(writer);
    rename(&partial, path)?;
    File::open(path.parent().unwrap())?.sync_all()
}

/// Syncs the folder above.
#[edit(path.parent().unwrap_or(Path::new(".")) => path.ancestors().nth(2).unwrap())]
pub fn folder_above() {}

/// Writes the first snapshot straight: there is no old one to lose.
#[edit(let partial = path.with_file_name(".snapshot.partial") => let partial = if path.exists() { path.with_file_name(".snapshot.partial") } else { path.to_owned() })]
#[edit(rename(&partial, path)?; => if partial != path { rename(&partial, path)?; })]
pub fn first_straight() {}

/// Right: closes the file after the write, opens it again to sync it, and opens the folder first.
pub fn reopens(path: &Path, bytes: &[u8]) -> Result<()> {
    let folder = File::open(path.parent().unwrap())?;
    let partial = path.with_extension("part");
    write(&partial, bytes)?;
    File::open(&partial)?.sync_all()?;
    rename(&partial, path)?;
    folder.sync_all()
}
