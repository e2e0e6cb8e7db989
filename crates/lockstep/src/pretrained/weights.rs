//! A file of weights in memory; its format is recognized by its content, not by its name.

use std::fs;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use safetensors::SafeTensors;
use tch::Tensor;

use super::archive::Archive;
use super::error::{BadFile, PretrainedError, shown};
use super::foreign;
use super::legacy::Legacy;
use super::pickle::Pickle;
use super::state_dict::{self, Found};
use super::tensors::{self, Storages};
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
    ///
    /// # Errors
    /// [`PretrainedError::File`] says what is wrong with it.
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
            _ => Err(BadFile::Other(foreign::describe(&start))),
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
    let Found { tensors, notes } = state_dict::find(&pickle)?;
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
