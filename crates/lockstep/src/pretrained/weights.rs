//! A file of weights in memory; its format is recognized by its content, not by its name. A file without weights, usually a failed
//! download, is identified too.

use std::fs;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use safetensors::SafeTensors;
use tch::Tensor;

use super::archive::{Archive, Legacy};
use super::error::{BadFile, PretrainedError, shown};
use super::pickle::Pickle;
use super::tensors;
use super::tensors::{StateDict, Storages};
use crate::snapshot;

/// How many bytes are needed to recognize a file.
const GLANCE: u64 = 512;

/// Named tensors on the CPU, as they are in a file.
///
/// Tensors that share memory in the file (tied weights) also do so here, and views may repeat elements: modify copies only, and
/// do not copy a tensor before checking that its shape is sensible.
#[derive(Debug)]
#[non_exhaustive]
pub struct Weights {
    /// Name and tensor, sorted by name.
    pub tensors: Vec<(String, Tensor)>,
    /// Where in the file they were, if not at the top.
    pub notes: Vec<String>,
}

impl Weights {
    /// Reads the file at `path`.
    pub fn read(path: &Path) -> Result<Self, PretrainedError> {
        let file = |why| PretrainedError::File { path: path.to_owned(), why };
        open(path).and_then(|(input, length)| Self::of(input, length)).map_err(file)
    }

    /// Reads a file of `length` bytes.
    pub(super) fn of(mut input: impl Read + Seek, length: u64) -> Result<Self, BadFile> {
        let mut start = Vec::new();
        input.by_ref().take(GLANCE).read_to_end(&mut start)?;
        input.seek(SeekFrom::Start(0))?;
        match start[..] {
            [b'P', b'K', 3, 4, ..] => Archive::open(input, length).and_then(of_torch),
            [0x80, 2..=5, ..] => Legacy::open(input, length).and_then(of_torch),
            // The length of a header, far below 4 GiB, and the header.
            [_, _, _, _, 0, 0, 0, 0, b'{', ..] => of_safetensors(input, length),
            _ => Err(BadFile::Other(describe(&start))),
        }
    }
}

fn open(path: &Path) -> Result<(BufReader<fs::File>, u64), BadFile> {
    if fs::metadata(path)?.is_dir() {
        return Err(BadFile::Other("it is a folder; name the file in it".into()));
    }
    let file = snapshot::open_regular(path)?;
    let length = file.metadata()?.len();
    Ok((BufReader::new(file), length))
}

fn of_torch((mut storages, pickle): (impl Storages, Pickle)) -> Result<Weights, BadFile> {
    let StateDict { tensors, notes } = tensors::find(&pickle)?;
    let mut tensors = tensors::build(&pickle, tensors, &mut storages)?;
    tensors.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(Weights { tensors, notes })
}

fn of_safetensors(mut input: impl Read, length: u64) -> Result<Weights, BadFile> {
    let bytes = snapshot::read_safetensors(&mut input, length)?;
    let damaged = |error: safetensors::SafeTensorError| BadFile::Damaged(error.to_string());
    let file = SafeTensors::deserialize(&bytes).map_err(damaged)?;
    let mut tensors = Vec::new();
    for (name, view) in file.tensors() {
        let tensor = snapshot::tensor(view.dtype(), view.shape(), view.data())
            .ok_or_else(|| BadFile::Other(format!("the tensor {} has the dtype {:?}", shown(&name), view.dtype())))?;
        tensors.push((name, tensor));
    }
    if tensors.is_empty() {
        return Err(BadFile::Other("there are no tensors in it".into()));
    }
    tensors.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(model_of_snapshot(tensors))
}

/// For a snapshot of this program, only the model.
fn model_of_snapshot(tensors: Vec<(String, Tensor)>) -> Weights {
    let has = |prefix: &str| tensors.iter().any(|(name, _)| name.starts_with(prefix));
    let (model, optimizer) = ("model.", "optimizer.");
    let all = tensors.iter().all(|(name, _)| name.starts_with(model) || name.starts_with(optimizer));
    if !(all && has(model) && has(optimizer)) {
        return Weights { tensors, notes: Vec::new() };
    }
    let of_model = |(name, tensor): (String, Tensor)| Some((name.strip_prefix(model)?.to_owned(), tensor));
    let notes = vec!["the file has an optimizer's state too, which is left out".to_owned()];
    Weights { tensors: tensors.into_iter().filter_map(of_model).collect(), notes }
}

/// How many characters of a text a message shows.
const SHOWN: usize = 40;

/// First bytes, what they indicate, and what to do.
const KNOWN: [(&[u8], &str); 8] = [
    (
        b"version https://git-lfs",
        "it is a pointer of Git LFS, not the file itself; run `git lfs pull` where it came from",
    ),
    (b"\x1f\x8b", "it is compressed with gzip; unpack it with gunzip"),
    (b"\xfd7zXZ", "it is compressed with xz; unpack it"),
    (b"BZh", "it is compressed with bzip2; unpack it"),
    (b"\x28\xb5\x2f\xfd", "it is compressed with zstd; unpack it"),
    (b"PK\x05\x06", "it is a zip archive of nothing"),
    (b"\x89HDF", "it is an HDF5 file, as Keras writes; convert it to safetensors"),
    (b"GGUF", "it is a GGUF file; convert it to safetensors"),
];

/// The position of a tar archive's signature.
const TAR: (usize, &[u8]) = (257, b"ustar");

/// Describes a file by its first bytes.
pub(super) fn describe(start: &[u8]) -> String {
    if start.is_empty() {
        return "it is empty: perhaps a download that failed; fetch it again".into();
    }
    if let Some((_, described)) = KNOWN.iter().find(|(begins, _)| start.starts_with(begins)) {
        return (*described).into();
    }
    if start.get(TAR.0..).is_some_and(|rest| rest.starts_with(TAR.1)) {
        return "it is a tar archive; unpack it, or, if PyTorch before 0.2 saved it, save it again with a newer one"
            .into();
    }
    let text = start.trim_ascii_start();
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text).trim_ascii_start(); // a byte order mark
    if text.starts_with(b"<") {
        return format!(
            "it is a web page, which begins with {:?}: a download that went wrong; fetch it again from where the file itself is",
            beginning(text)
        );
    }
    let is_text = |byte: &u8| matches!(byte, b'\t' | b'\n' | b'\r' | b' '..=b'~' | 0x80..);
    if start.iter().all(is_text) && std::str::from_utf8(&start[..start.len().min(8)]).is_ok() {
        return format!("it is a text, which begins with {:?}: perhaps a download that went wrong", beginning(text));
    }
    "it is neither a safetensors file nor one that torch.save wrote".into()
}

fn beginning(text: &[u8]) -> String {
    String::from_utf8_lossy(text).chars().take(SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognizes_failed_downloads() {
        let mut tar = vec![0; 512];
        tar[257..262].copy_from_slice(b"ustar");
        for (start, expected) in [
            (&b""[..], "empty"),
            (b"\xef\xbb\xbf\n <!DOCTYPE html><html>404", "web page, which begins with \"<!DOCTYPE html>"),
            (b"<?xml version='1.0'?><Error><Code>AccessDenied", "web page"),
            (b"{\"error\": \"not found\"}", "text, which begins with \"{"),
            (b"Not Found", "Not Found"),
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:", "git lfs pull"),
            (b"\x1f\x8b\x08\x00", "gunzip"),
            (&tar, "tar"),
            (b"\x00\x01\x02", "neither"),
        ] {
            let said = describe(start);
            assert!(said.contains(expected), "{said}");
        }
    }
}
