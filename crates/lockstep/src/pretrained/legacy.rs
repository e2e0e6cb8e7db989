//! What `torch.save` wrote before PyTorch 1.6: five pickles (a magic number, the protocol's version, facts about the machine, the
//! object, the keys of its storages), and then the storages, each its number of elements and its bytes.
//!
//! The bytes are little-endian, whatever the machine was (`torch/csrc/serialization.cpp`).

use std::collections::HashMap;
use std::io::{Read, Seek, SeekFrom};

use tch::Kind;

use super::archive::LONGEST_PICKLE;
use super::error::BadFile;
use super::pickle::{self, Pickle, Reader, Value};
use super::tensors::Storages;

/// `MAGIC_NUMBER` of `torch/serialization.py`, as a pickle has it.
const MAGIC: [u8; 10] = [0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];
/// `PROTOCOL_VERSION` there.
const VERSION: i64 = 1001;
/// A storage begins with its number of elements, in so many bytes.
const COUNT: u64 = 8;

/// The storages behind the pickles.
pub(super) struct Legacy<R> {
    input: R,
    /// Where each begins, behind its number of elements, and how many elements it has.
    places: HashMap<String, (u64, u64)>,
}

impl<R: Read + Seek> Legacy<R> {
    /// The storages of a file of `length` bytes, and the pickle that tells of them.
    pub(super) fn open(mut input: R, length: u64) -> Result<(Self, Pickle), BadFile> {
        let mut start = Vec::new();
        input.by_ref().take(LONGEST_PICKLE).read_to_end(&mut start)?;
        let mut reader = Reader::new(&start);
        check_start(&mut reader)?;
        let pickle = pickle::parse(&mut reader)?;
        let keys = keys(&pickle::parse(&mut reader)?)?;
        let begin = reader.at() as u64;
        drop(start);
        let places = places(&mut input, begin..length, &keys, &kinds(&pickle))?;
        Ok((Legacy { input, places }, pickle))
    }
}

impl<R: Read + Seek> Storages for Legacy<R> {
    fn bytes(&mut self, key: &str, kind: Kind, count: usize) -> Result<Vec<u8>, BadFile> {
        let damaged = |why: &str| BadFile::Damaged(format!("the storage {} {why}", key.escape_debug()));
        let &(begin, numel) = self.places.get(key).ok_or_else(|| damaged("is not in it"))?;
        if numel.checked_mul(kind.elt_size_in_bytes() as u64) != Some(count as u64) {
            return Err(damaged("has another length than its pickle tells"));
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

fn keys(pickle: &Pickle) -> Result<Vec<String>, BadFile> {
    let damaged = || BadFile::Damaged("it has no list of its storages".into());
    let Value::List(keys) = pickle.root() else { return Err(damaged()) };
    keys.iter().map(|&key| pickle.text(key).map(str::to_owned).ok_or_else(damaged)).collect()
}

/// The dtype of each storage, which alone tells how many bytes an element has.
fn kinds(pickle: &Pickle) -> HashMap<&str, Kind> {
    let storages = pickle.values().filter_map(|value| match value {
        Value::Storage(storage) => Some((pickle.text(storage.key)?, storage.kind)),
        _ => None,
    });
    // Where they differ the tensors are refused later.
    storages.collect()
}

fn places<R: Read + Seek>(
    input: &mut R,
    range: std::ops::Range<u64>,
    keys: &[String],
    kinds: &HashMap<&str, Kind>,
) -> Result<HashMap<String, (u64, u64)>, BadFile> {
    let (mut at, mut places) = (range.start, HashMap::new());
    for key in keys {
        let shown = key.escape_debug();
        let kind = kinds.get(key.as_str());
        let kind = kind.ok_or_else(|| BadFile::Damaged(format!("its storage {shown} belongs to nothing")))?;
        let short = || BadFile::Damaged(format!("it ends at byte {}, inside of the storage {shown}", range.end));
        let begin = at.checked_add(COUNT).filter(|&begin| begin <= range.end).ok_or_else(short)?;
        let mut count = [0; COUNT as usize];
        input.seek(SeekFrom::Start(at))?;
        input.read_exact(&mut count)?;
        let numel = u64::from_le_bytes(count);
        let bytes = numel.checked_mul(kind.elt_size_in_bytes() as u64);
        let end = bytes.and_then(|bytes| begin.checked_add(bytes));
        at = end.filter(|&end| end <= range.end).ok_or_else(short)?;
        places.insert(key.clone(), (begin, numel));
    }
    Ok(places)
}
