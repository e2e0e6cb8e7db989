//! The files of a sharded snapshot: a part of each rank, and an index, which has the name of a snapshot.
//!
//! A part is a file like a snapshot, with its own checksum, of one-dimensional pieces of tensors. Its name ends in that checksum, so that
//! no part ever replaces another one; the index lists the parts. It is written last: without it, or with another, parts are nothing.
//! Those that no index lists are removed.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{fs, io};

use serde::{Deserialize, Serialize};
use tch::{Device, TchError, Tensor};

use super::contents::{self, Contents, Memory};
use super::error::BadSnapshot;
use super::folder;
use super::meta::Meta;
use super::source;
use crate::loader::Position;
use crate::parallel::Piece;

/// What a file of a sharded snapshot is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sharded {
    /// The index, with the files of all ranks, by rank.
    Index(Vec<PartFile>),
    /// What this rank has.
    Part {
        /// The rank.
        rank: usize,
        /// Its elements of each parameter of which it has any.
        pieces: Vec<Piece>,
    },
}

/// A part, as the index lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartFile {
    /// The file's name, in the folder of the index.
    pub file: String,
    /// Its length.
    pub bytes: u64,
}

/// The name of the part of `rank` whose checksum has these digits.
pub(super) fn name_of(position: Position, rank: usize, ranks: usize, checksum: &str) -> String {
    format!("{}-{rank}-of-{ranks}-{checksum}.safetensors", start_of(position.epoch, position.step))
}

fn start_of(epoch: u64, step: usize) -> String {
    format!("part-{epoch:06}-{step:08}")
}

/// The contents of the snapshot at `path`, as one rank would have saved it; read from the parts if it is an index.
pub(super) fn read(path: &Path) -> Result<Contents, BadSnapshot> {
    let index = source::contents(path)?;
    let meta = index.meta()?;
    match &meta.sharded {
        None => Ok(index),
        Some(Sharded::Part { .. }) => Err(BadSnapshot::NotOurs("it is a part of a sharded snapshot".into())),
        Some(Sharded::Index(files)) => {
            let folder = path.parent().unwrap_or(Path::new("."));
            let mut whole = Assembly::default();
            for (rank, part) in files.iter().enumerate() {
                let taken = whole.take(&folder.join(&part.file), part, rank, &meta);
                taken.map_err(|why| BadSnapshot::Part { file: part.file.clone(), why: Box::new(why) })?;
            }
            whole.finish(&meta, index.extra()?.as_deref())
        }
    }
}

/// Tensors that are being put together.
#[derive(Default)]
struct Assembly {
    /// By their names in the file; how many elements have come.
    tensors: BTreeMap<String, (Tensor, usize)>,
    /// Up to which element the pieces of each parameter have come, and its shape.
    params: BTreeMap<String, (Vec<i64>, usize)>,
}

impl Assembly {
    fn take(&mut self, path: &Path, listed: &PartFile, rank: usize, index: &Meta) -> Result<(), BadSnapshot> {
        if Path::new(&listed.file).file_name().is_none_or(|name| name != listed.file.as_str()) {
            return Err(BadSnapshot::NotOurs("the index lists a file that is not next to it".into()));
        }
        let contents = source::contents(path)?;
        let ending = contents.checksum().map(|checksum| format!("-{checksum}.safetensors"));
        if contents.bytes() != listed.bytes || ending.is_none_or(|ending| !listed.file.ends_with(&ending)) {
            return Err(BadSnapshot::NotOurs("it is not the file that the index lists".into()));
        }
        let meta = contents.meta()?;
        let pieces = match &meta.sharded {
            Some(Sharded::Part { rank: of, pieces }) if *of == rank && meta.position == index.position => pieces,
            _ => return Err(BadSnapshot::NotOurs(format!("it is not the part of rank {rank} of this snapshot"))),
        };
        let mut by_name = BTreeMap::new();
        for piece in pieces {
            by_name.insert(piece.name.as_str(), (piece, self.numel(piece)?));
        }
        for (name, saved) in contents.named()? {
            match by_name.get(param_of(&name)) {
                Some((piece, numel)) => self.copy(name, &saved, piece, *numel)?,
                None => drop(self.tensors.insert(name, (saved, 0))),
            }
        }
        Ok(())
    }

    /// The parameter's length, if the piece follows the one before.
    fn numel(&mut self, piece: &Piece) -> Result<usize, BadSnapshot> {
        let (shape, so_far) = self.params.entry(piece.name.clone()).or_insert_with(|| (piece.shape.clone(), 0));
        let sizes = shape.iter().map(|size| usize::try_from(*size).ok());
        let numel = sizes.into_iter().try_fold(1_usize, |numel, size| numel.checked_mul(size?));
        let follows = *shape == piece.shape && *so_far == piece.elements.start && !piece.elements.is_empty();
        match numel.filter(|numel| follows && piece.elements.end <= *numel) {
            Some(numel) => {
                *so_far = piece.elements.end;
                Ok(numel)
            }
            None => Err(BadSnapshot::NotOurs(format!(
                "its elements {:?} of {} do not fit the others'",
                piece.elements, piece.name
            ))),
        }
    }

    fn copy(&mut self, name: String, saved: &Tensor, piece: &Piece, numel: usize) -> Result<(), BadSnapshot> {
        let length = piece.elements.len();
        let torch = |error: TchError| BadSnapshot::Unreadable(io::Error::other(error));
        let (whole, came) = match self.tensors.entry(name) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(free) => {
                let whole = Tensor::f_empty([numel as i64], (saved.kind(), Device::Cpu)).map_err(torch)?;
                free.insert((whole.f_view(&*piece.shape).map_err(torch)?, 0))
            }
        };
        if saved.size() != [length as i64] || saved.kind() != whole.kind() || whole.size() != piece.shape {
            return Err(BadSnapshot::NotOurs(format!("its tensors of {} do not fit the others'", piece.name)));
        }
        let elements = whole.f_view(-1).and_then(|flat| flat.f_narrow(0, piece.elements.start as i64, length as i64));
        elements.and_then(|mut elements| elements.f_copy_(saved)).map_err(torch)?;
        *came += length;
        Ok(())
    }

    /// Everything, if it is complete.
    fn finish(self, index: &Meta, extra: Option<&str>) -> Result<Contents, BadSnapshot> {
        let lacks = |name: &str| BadSnapshot::NotOurs(format!("its parts do not have all of {name}"));
        let whole = |shape: &[i64]| shape.iter().product::<i64>() as usize;
        if let Some((name, _)) = self.params.iter().find(|(_, (shape, came))| *came != whole(shape)) {
            return Err(lacks(name));
        }
        let mut tensors = Vec::new();
        for (name, (tensor, came)) in self.tensors {
            if self.params.contains_key(param_of(&name)) && came != tensor.numel() {
                return Err(lacks(&name));
            }
            tensors.push((name, tensor));
        }
        contents::sort(&mut tensors);
        let meta = Meta { sharded: None, ..index.clone() };
        let contents = Contents::new(&meta, extra, &tensors, Memory::Shared).map_err(io::Error::other)?;
        Ok(contents.sealed()?)
    }
}

/// The parameter that a tensor of the file belongs to: `model.<name>`, `optimizer.<state>.<name>`.
pub(super) fn param_of(name: &str) -> &str {
    match name.split_once('.') {
        Some(("optimizer", state)) => state.split_once('.').map_or(state, |(_, param)| param),
        Some((_, param)) => param,
        None => name,
    }
}

/// The parts in `folder` of snapshots up to `saved` that no index there lists. If an index cannot be read, its parts are not known:
/// then those of its position stay.
pub(super) fn unlisted(folder: &Path, saved: Position) -> Vec<PathBuf> {
    let Ok(indices) = folder::list(folder) else { return Vec::new() };
    let (mut listed, mut unknown) = (BTreeSet::new(), BTreeSet::new());
    for found in indices {
        match source::meta(&found.path).map(|meta| meta.sharded) {
            Ok(Some(Sharded::Index(files))) => listed.extend(files.into_iter().map(|part| part.file)),
            Ok(_) => {}
            Err(_) => drop(unknown.insert((found.epoch, found.step))),
        }
    }
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let unlisted = |path: &PathBuf| {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return false };
        let Some(at) = position_of(name) else { return false };
        at <= (saved.epoch, saved.step) && !listed.contains(name) && !unknown.contains(&at) && source::is_ours(path)
    };
    entries.filter(unlisted).collect()
}

/// Epoch and step of the part with this name.
fn position_of(name: &str) -> Option<(u64, usize)> {
    let mut words = name.strip_prefix("part-")?.strip_suffix(".safetensors")?.split('-');
    let (epoch, step) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    name.starts_with(&format!("{}-", start_of(epoch, step))).then_some((epoch, step))
}
