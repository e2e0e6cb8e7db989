//! A simple format of snapshot files, for task `newest`: a line with checksum and length, then the bytes. You do not change this file.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// Returns the position (epoch and step) of a snapshot from its file name `snapshot-EPOCH-STEP`, or `None` if the name has
/// another form.
pub fn position(path: &Path) -> Option<(u64, u64)> {
    let (epoch, step) = path.file_name()?.to_str()?.strip_prefix("snapshot-")?.split_once('-')?;
    Some((epoch.parse().ok()?, step.parse().ok()?))
}

/// Reads a snapshot and checks it.
///
/// # Errors
/// When it cannot be read, is torn, or is damaged.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let end = bytes.iter().position(|byte| *byte == b'\n').context("the snapshot is torn: it has no head")?;
    let (head, body) = (String::from_utf8_lossy(&bytes[..end]), &bytes[end + 1..]);
    let (checksum, length) = head.split_once(' ').context("this is not a snapshot")?;
    ensure!(body.len() == length.parse::<usize>()?, "the snapshot is torn: it has {} bytes of {length}", body.len());
    ensure!(format!("{:08x}", crc32fast::hash(body)) == checksum, "the snapshot is damaged: its checksum is wrong");
    Ok(body.to_vec())
}
