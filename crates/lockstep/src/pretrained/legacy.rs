//! The format of `torch.save` before PyTorch 1.6: five pickles (a magic number, the protocol's version, facts about the
//! machine, the object, the keys of its storages), followed by the storages, each with its number of elements and its bytes.
//!
//! The bytes are little-endian on every machine (`torch/csrc/serialization.cpp`).

use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;

use tch::Kind;

use super::archive::LONGEST_PICKLE;
use super::error::{BadFile, shown};
use super::pickle::{self, Id, Pickle, Reader, Value};
use super::tensors::Storages;

/// `MAGIC_NUMBER` of `torch/serialization.py`, in a pickle's encoding.
const MAGIC: [u8; 10] = [0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];
/// `PROTOCOL_VERSION` of the same file.
const VERSION: i64 = 1001;
/// Bytes of the number of elements at the start of a storage.
const COUNT: u64 = 8;

/// The storages after the pickles.
pub(super) struct Legacy<R> {
    input: R,
    /// Where the elements of each begin, and how many there are.
    places: HashMap<String, (u64, u64)>,
}

impl<R: Read + Seek> Legacy<R> {
    /// The storages of a file of `length` bytes, and the pickle that describes them.
    pub(super) fn open(mut input: R, length: u64) -> Result<(Self, Pickle), BadFile> {
        let mut start = Vec::new();
        input.by_ref().take(LONGEST_PICKLE).read_to_end(&mut start)?;
        let mut reader = Reader::new(&start);
        check_start(&mut reader)?;
        let pickle = pickle::parse(&mut reader)?;
        let keys = pickle::parse(&mut reader)?;
        let begin = reader.at() as u64;
        drop(start);
        let places = places(&mut input, begin..length, &keys, &kinds(&pickle))?;
        Ok((Legacy { input, places }, pickle))
    }
}

impl<R: Read + Seek> Storages for Legacy<R> {
    fn bytes(&mut self, key: &str, kind: Kind, count: usize) -> Result<Vec<u8>, BadFile> {
        let damaged = |why: &str| BadFile::Damaged(format!("the storage {} {why}", shown(key)));
        let &(begin, numel) = self.places.get(key).ok_or_else(|| damaged("is not in it"))?;
        if numel.checked_mul(kind.elt_size_in_bytes() as u64) != Some(count as u64) {
            return Err(damaged("has another length than its pickle says"));
        }
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(count).map_err(|_| damaged("does not fit into memory"))?;
        self.input.seek(SeekFrom::Start(begin))?;
        self.input.by_ref().take(count as u64).read_to_end(&mut bytes)?;
        if bytes.len() == count { Ok(bytes) } else { Err(damaged("ends too early")) }
    }
}

fn check_start(reader: &mut Reader<'_>) -> Result<(), BadFile> {
    let magic = pickle::parse(reader)?;
    if !matches!(magic.root(), Value::Long(number) if number[..] == MAGIC) {
        return Err(BadFile::Other("it is a pickle, but not one of torch.save".into()));
    }
    let version = pickle::parse(reader)?;
    if !matches!(version.root(), Value::Int(VERSION)) {
        let why = format!("its version of torch.save's old format is {:?}, and {VERSION} is known", version.root());
        return Err(BadFile::Other(why));
    }
    pickle::parse(reader).map(drop) // of the machine: the sizes of its integers
}

/// The dtype of each storage, which alone determines the bytes per element.
fn kinds(pickle: &Pickle) -> HashMap<&str, Kind> {
    let storages = pickle.values().filter_map(|value| match value {
        Value::Storage(storage) => Some((storage.key, storage.kind)),
        _ => None,
    });
    // Compare numbers first: many storages may have the same long text as their key. If dtypes differ, the tensors are rejected
    // later.
    let of_keys: BTreeMap<Id, Kind> = storages.collect();
    of_keys.into_iter().filter_map(|(key, kind)| Some((pickle.text(key)?, kind))).collect()
}

/// Locates the storages from the list of their keys. Each must be a storage of the object, once.
fn places<R: Read + Seek>(
    input: &mut R,
    range: Range<u64>,
    keys: &Pickle,
    kinds: &HashMap<&str, Kind>,
) -> Result<HashMap<String, (u64, u64)>, BadFile> {
    let no_list = || BadFile::damaged("it has no list of its storages");
    let Value::List(ids) = keys.root() else { return Err(no_list()) };
    if ids.len() > kinds.len() {
        let why = format!("it lists {} storages where its tensors have {}", ids.len(), kinds.len());
        return Err(BadFile::Damaged(why));
    }
    let (mut at, mut places) = (range.start, HashMap::new());
    for &id in ids {
        let key = keys.text(id).ok_or_else(no_list)?;
        let damaged = |why: &str| BadFile::Damaged(format!("its storage {} {why}", shown(key)));
        let kind = *kinds.get(key).ok_or_else(|| damaged("belongs to nothing"))?;
        if places.contains_key(key) {
            return Err(damaged("is listed twice"));
        }
        let (begin, numel) = place(input, at, range.end, kind)?.ok_or_else(|| damaged("reaches beyond its end"))?;
        at = begin + numel * kind.elt_size_in_bytes() as u64;
        places.insert(key.to_owned(), (begin, numel));
    }
    Ok(places)
}

/// Where the elements of the storage at `at` begin, and how many there are; `None` if they extend beyond `end`.
fn place<R: Read + Seek>(input: &mut R, at: u64, end: u64, kind: Kind) -> Result<Option<(u64, u64)>, BadFile> {
    let Some(begin) = at.checked_add(COUNT).filter(|&begin| begin <= end) else { return Ok(None) };
    let mut count = [0; COUNT as usize];
    input.seek(SeekFrom::Start(at))?;
    input.read_exact(&mut count)?;
    let numel = u64::from_le_bytes(count);
    let bytes = numel.checked_mul(kind.elt_size_in_bytes() as u64);
    let fits = bytes.and_then(|bytes| begin.checked_add(bytes)).is_some_and(|last| last <= end);
    Ok(fits.then_some((begin, numel)))
}
