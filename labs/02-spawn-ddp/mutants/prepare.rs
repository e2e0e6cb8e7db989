//! Other answers to `prepare`: wrong ones, and right ones that look unusual.

use std::fs;
use std::path::Path;
use std::time::Duration;

use c10d::{ProcessGroup, Rank};
use tch::{Device, Kind, Tensor};

use crate::download::Download;

/// Every rank makes the folder and downloads the file.
pub fn everyone(_: &ProcessGroup, folder: &Path, download: &Download) -> anyhow::Result<String> {
    let file = folder.join("digits");
    fs::create_dir_all(folder)?;
    download.to(&file)?;
    Ok(fs::read_to_string(file)?)
}

/// Rank 0 downloads, and the others do not wait for it: the barrier is rank 0's alone.
pub fn nobody_waits(group: &ProcessGroup, folder: &Path, download: &Download) -> anyhow::Result<String> {
    let file = folder.join("digits");
    if group.rank().is_zero() {
        fs::create_dir_all(folder)?;
        download.to(&file)?;
        group.barrier()?;
    }
    Ok(fs::read_to_string(file)?)
}

/// The others wait until the file exists, which is when the download begins.
pub fn polls(group: &ProcessGroup, folder: &Path, download: &Download) -> anyhow::Result<String> {
    let file = folder.join("digits");
    if group.rank().is_zero() {
        fs::create_dir_all(folder)?;
        download.to(&file)?;
    }
    while fs::metadata(&file).map_or(0, |data| data.len()) == 0 {
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(fs::read_to_string(file)?)
}

/// Rank 0 has nothing to wait for, and leaves the barrier to the others.
pub fn others_wait(group: &ProcessGroup, folder: &Path, download: &Download) -> anyhow::Result<String> {
    let file = folder.join("digits");
    if group.rank().is_zero() {
        fs::create_dir_all(folder)?;
        download.to(&file)?;
    } else {
        group.barrier()?;
    }
    Ok(fs::read_to_string(file)?)
}

/// Right, in its own way: the others wait for a broadcast of rank 0, which comes after the download.
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
