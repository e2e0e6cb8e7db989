//! Answers to `prepare`: wrong ones, and unusual right ones.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use c10d::{ProcessGroup, Rank};
use lockstep_answers::{edit, given};
use tch::{Device, Kind, Tensor};

use crate::download::Download;

/// The given program: creates the folder and downloads the file on every rank.
#[given]
pub fn everyone() {}

/// Calls the barrier only on rank 0, so the other ranks do not wait.
#[edit(group.barrier()?; => )]
#[edit(download.to(&file)?; => download.to(&file)?; group.barrier()?;)]
pub fn nobody_waits() {}

/// Waits until the file exists, which is when the download begins.
#[edit(group.barrier()?; => while fs::metadata(&file).map_or(0, |data| data.len()) == 0 {
    std::thread::sleep(Duration::from_millis(10));
})]
pub fn polls() {}

/// Calls the barrier on all ranks except rank 0, which has nothing to wait for.
#[edit(group.barrier()?; => else { group.barrier()?; })]
pub fn others_wait() {}

/// Right: the other ranks wait for a broadcast from rank 0 that follows the download.
pub fn sends(group: &ProcessGroup, folder: &Path, download: &Download) -> anyhow::Result<String> {
    let file = folder.join("digits");
    let mut length = Tensor::zeros([1], (Kind::Int64, Device::Cpu));
    if group.rank().is_zero() {
        fs::create_dir_all(folder)?;
        download.to(&file)?;
        length = length.fill(fs::metadata(&file)?.len() as i64);
    }
    group.broadcast(&mut length, Rank::ZERO)?;
    anyhow::ensure!(fs::metadata(&file)?.len() as i64 == length.int64_value(&[0]), "the file is cut short");
    Ok(fs::read_to_string(file)?)
}

/// Lets the ranks download one after the other.
#[given]
#[edit(download.to(&file)?; => for turn in group.size().ranks() {
    if turn == group.rank() {
        download.to(&file)?;
    }
    group.barrier()?;
})]
pub fn in_turn() {}

/// Calls the barrier before the download, not after it.
#[edit(group.barrier()?; => )]
#[edit(if group.rank() => group.barrier()?; if group.rank())]
pub fn too_early() {}

/// Lets the first rank that comes download, with a file as a lock.
pub fn first_come(_group: &ProcessGroup, folder: &Path, download: &Download) -> anyhow::Result<String> {
    let file = folder.join("digits");
    fs::create_dir_all(folder)?;
    // Whoever creates the lock first downloads.
    let lock = folder.join("lock");
    if fs::File::create_new(&lock).is_ok() {
        download.to(&file)?;
        fs::remove_file(&lock)?;
    } else {
        while lock.exists() {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
    Ok(fs::read_to_string(file)?)
}

/// Reads before the barrier, and again if there was nothing.
pub fn reads_early(group: &ProcessGroup, folder: &Path, download: &Download) -> anyhow::Result<String> {
    let file = folder.join("digits");
    fs::create_dir_all(folder)?;
    if group.rank().is_zero() {
        download.to(&file)?;
    }
    let text = fs::read_to_string(&file).unwrap_or_default();
    group.barrier()?;
    if text.is_empty() { Ok(fs::read_to_string(file)?) } else { Ok(text) }
}

/// Sleeps, usually for longer than the download takes.
#[edit(group.barrier()?; => else { std::thread::sleep(Duration::from_secs(3)); })]
pub fn sleeps() {}

/// Reads on the rank that has downloaded, and nowhere else.
pub fn reads_once(group: &ProcessGroup, folder: &Path, download: &Download) -> anyhow::Result<String> {
    let mut text = String::new();
    if group.rank().is_zero() {
        fs::create_dir_all(folder)?;
        download.to(&folder.join("digits"))?;
        text = fs::read_to_string(folder.join("digits"))?;
    }
    group.barrier()?;
    Ok(text)
}
