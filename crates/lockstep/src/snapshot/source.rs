//! Reads a snapshot's file defensively: its name proves nothing about its contents.
//!
//! Never waits for a pipe or a device under that name, and reads a file only as far as its contents have been validated.
//! [`super::file`] interprets the bytes.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

use super::contents::Contents;
use super::error::BadSnapshot;
use super::fence::Attempt;
use super::file::{self, Header, LENGTH};
use super::meta::{Meta, Snapshot};
use super::parts;
use super::survey::Summary;

/// How many bytes of a header are read to find its owner: the metadata come first in it.
const GLANCE: u64 = 64 * 1024;

impl Snapshot {
    /// Reads and checks the file at `path`.
    ///
    /// # Errors
    /// [`BadSnapshot`] says what is wrong with it.
    pub fn read(path: &Path) -> Result<Self, BadSnapshot> {
        parts::read(path)?.snapshot()
    }
}

/// The checked contents of the file at `path`.
pub(super) fn contents(path: &Path) -> Result<Contents, BadSnapshot> {
    let mut file = open_regular(path)?;
    let has = file.metadata()?.len();
    Contents::read(&mut file, has)
}

/// The file's bytes: first its header, and the rest only if the file has the length that the header says.
pub(crate) fn read_whole(path: &Path) -> Result<Vec<u8>, BadSnapshot> {
    let mut file = open_regular(path)?;
    let has = file.metadata()?.len();
    read_safetensors(&mut file, has)
}

/// As [`read_whole`], for any safetensors file of `has` bytes.
pub(crate) fn read_safetensors(file: &mut impl Read, has: u64) -> Result<Vec<u8>, BadSnapshot> {
    let mut bytes = read_start(file, has)?;
    append(file, has.saturating_sub(bytes.len() as u64), &mut bytes)?;
    Ok(bytes)
}

/// The length and the header of a safetensors file of `has` bytes, which has the length that they say.
pub(super) fn read_start(file: &mut impl Read, has: u64) -> Result<Vec<u8>, BadSnapshot> {
    let mut start = Vec::new();
    append(file, LENGTH as u64, &mut start)?;
    let header = file::header_length(&start, has)?;
    append(file, header as u64, &mut start)?;
    file::check_ends(start.get(LENGTH..).unwrap_or_default(), has)?;
    Ok(start)
}

/// Opens `path` for reading if it is a regular file; does not wait for a pipe's writer.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"))
}

/// Information from the header of the file at `path`; the tensors are not read, and may be torn or damaged.
pub(super) fn summary(path: &Path) -> Result<Summary, BadSnapshot> {
    let (bytes, header) = header(path)?;
    let (checksum, jobs) = file::identity(&header);
    Ok(Summary { bytes, checksum, jobs })
}

/// The description in the header of the file at `path`; the tensors are not read.
pub(super) fn meta(path: &Path) -> Result<Meta, BadSnapshot> {
    Header::of_json(&header(path)?.1)?.meta()
}

/// The attempt that wrote the file at `path`; `None` if its header does not say.
pub(super) fn attempt(path: &Path) -> Option<Attempt> {
    file::attempt(&header(path).ok()?.1)
}

/// The file's length, and its header.
fn header(path: &Path) -> Result<(u64, Vec<u8>), BadSnapshot> {
    let mut file = open_regular(path)?;
    let (bytes, mut start) = (file.metadata()?.len(), Vec::new());
    append(&mut file, LENGTH as u64, &mut start)?;
    let length = file::header_length(&start, bytes)?;
    append(&mut file, length as u64, &mut start)?;
    Ok((bytes, start.split_off(LENGTH.min(start.len()))))
}

/// Returns true if this module wrote the file at `path` in this schema; it may be torn or damaged.
pub(super) fn is_ours(path: &Path) -> bool {
    let mut start = Vec::new();
    let read = open_regular(path).and_then(|file| file.take(LENGTH as u64 + GLANCE).read_to_end(&mut start));
    read.is_ok() && start.get(LENGTH..).is_some_and(file::is_our_header)
}

fn append(file: &mut impl Read, count: u64, bytes: &mut Vec<u8>) -> io::Result<()> {
    let fits = usize::try_from(count).is_ok_and(|count| bytes.try_reserve_exact(count).is_ok());
    if !fits {
        return Err(io::Error::new(io::ErrorKind::OutOfMemory, format!("{count} bytes do not fit into memory")));
    }
    file.take(count).read_to_end(bytes).map(drop)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn does_not_wait_for_a_pipe_nor_read_a_device() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).unwrap();
        for path in [pipe.as_path(), Path::new("/dev/zero"), folder.path()] {
            let bad = read_whole(path).unwrap_err();
            assert!(matches!(bad, BadSnapshot::Unreadable(_)), "{}: {bad}", path.display());
            assert!(bad.to_string().contains("no regular file"), "{bad}");
            assert!(!is_ours(path));
        }
    }

    #[test]
    fn reads_no_more_of_an_absurdly_long_file_than_its_header() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sparse");
        let header = br#"{"model.w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
        for start in [vec![0; 8], [&(header.len() as u64).to_le_bytes()[..], header].concat(), vec![0xff; 8]] {
            fs::write(&path, &start).unwrap();
            // 8 TiB, but sparse: reading it would use all memory.
            File::options().write(true).open(&path).unwrap().set_len(1 << 43).unwrap();
            let bad = read_whole(&path).unwrap_err();
            assert!(matches!(bad, BadSnapshot::NotOurs(_)), "{bad}");
        }
    }
}
