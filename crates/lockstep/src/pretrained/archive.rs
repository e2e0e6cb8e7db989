//! The two formats of `torch.save`.
//!
//! Since PyTorch 1.6: a zip archive with `NAME/data.pkl`, the storages `NAME/data/KEY`, and small metadata entries. Before: five
//! pickles (a magic number, the protocol's version, facts about the machine, the object, the keys of its storages), followed by the
//! storages, each with its number of elements and its bytes, little-endian on every machine (`torch/csrc/serialization.cpp`).

use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;

use lockstep_contract::pickle::{Id, Reader, parse};
use tch::Kind;
use zip::ZipArchive;
use zip::result::ZipError;

use super::error::{BadFile, shown};
use super::pickle::{Object, Pickle, Value};
use super::tensors::Storages;

/// Maximum length of a pickle, in bytes: a state dict needs about 200 for each of its tensors.
const LONGEST_PICKLE: u64 = 64 << 20;

/// Maximum ratio of unpacked bytes to the length of the file; PyTorch does not compress, and weights hardly shrink.
const MOST_EXPANSION: u64 = 16;
/// Additional allowance in bytes, for small files.
const SMALL: u64 = 64 << 20;

/// The signature of the record at an archive's end, and the maximum length of that record with its comment (APPNOTE.TXT,
/// 4.3.16).
const END: &[u8] = b"PK\x05\x06";
const LONGEST_END: u64 = 22 + 65_535;

/// An archive, and how many more bytes may be unpacked.
pub(super) struct Archive<R> {
    zip: ZipArchive<R>,
    /// The folder in it, with a trailing slash.
    folder: String,
    length: u64,
    left: u64,
    big_endian: bool,
}

impl<R: Read + Seek> Archive<R> {
    /// Opens the archive of a file of `length` bytes, and reads its pickle.
    pub(super) fn open(mut input: R, length: u64) -> Result<(Self, Pickle), BadFile> {
        check_end(&mut input, length)?;
        let zip = ZipArchive::new(input).map_err(of_zip("its list of contents"))?;
        let folder = folder(&zip)?;
        let left = length.saturating_mul(MOST_EXPANSION).saturating_add(SMALL);
        let mut archive = Archive { zip, folder, length, left, big_endian: false };
        if archive.has("constants.pkl") {
            return Err(BadFile::Other(
                "it is a TorchScript module, a program with its weights; in Python: \
                 torch.save(torch.jit.load(PATH).state_dict(), \"weights.pth\")"
                    .into(),
            ));
        }
        archive.big_endian = archive.is_big_endian()?;
        let bytes = archive.entry("data.pkl", LONGEST_PICKLE)?;
        let pickle = parse(&mut Reader::new(&bytes))?;
        Ok((archive, pickle))
    }

    fn has(&self, name: &str) -> bool {
        self.zip.index_for_name(&format!("{}{name}", self.folder)).is_some()
    }

    /// Archives of PyTorch before 2.1 do not say; their storages have the byte order of the machine that wrote them.
    fn is_big_endian(&mut self) -> Result<bool, BadFile> {
        if !self.has("byteorder") {
            return Ok(false);
        }
        match &self.entry("byteorder", 16)?[..] {
            b"little" => Ok(false),
            b"big" => Ok(true),
            _ => Err(BadFile::Damaged("its byteorder is neither little nor big".into())),
        }
    }

    /// Reads the entry, which must not be longer than `most` bytes.
    fn entry(&mut self, name: &str, most: u64) -> Result<Vec<u8>, BadFile> {
        let mut entry = self.zip.by_name(&format!("{}{name}", self.folder)).map_err(of_zip(name))?;
        let size = entry.size();
        if size > most.min(self.left) {
            return Err(BadFile::Other(format!(
                "its entry {} unpacks to {size} bytes, which is too much for a file of {} bytes",
                shown(name),
                self.length
            )));
        }
        self.left -= size;
        let mut bytes = Vec::new();
        // Allocates no more at once than the file has: memory grows only with data that exists.
        let fits = bytes.try_reserve_exact(size.min(self.length) as usize).is_ok();
        let read = (&mut entry).take(size + 1).read_to_end(&mut bytes);
        match read {
            Ok(read) if fits && read as u64 == size => Ok(bytes),
            Ok(read) => Err(BadFile::Damaged(format!("its entry {} has {read} bytes of {size}", shown(name)))),
            Err(error) => Err(BadFile::Damaged(format!("its entry {}: {error}", shown(name)))),
        }
    }
}

impl<R: Read + Seek> Storages for Archive<R> {
    fn bytes(&mut self, key: &str, kind: Kind, count: usize) -> Result<Vec<u8>, BadFile> {
        let mut bytes = self.entry(&format!("data/{key}"), u64::MAX)?;
        if bytes.len() != count {
            let has = bytes.len();
            return Err(BadFile::Damaged(format!(
                "the storage {} has {has} bytes where its pickle says {count}",
                shown(key)
            )));
        }
        if self.big_endian {
            bytes.chunks_exact_mut(kind.elt_size_in_bytes()).for_each(<[u8]>::reverse);
        }
        Ok(bytes)
    }
}

/// Returns true if the record at the end of every archive is in its place. The zip crate would search for it in the whole file,
/// which may claim any length.
fn check_end<R: Read + Seek>(input: &mut R, length: u64) -> Result<(), BadFile> {
    let mut end = Vec::new();
    input.seek(SeekFrom::Start(length.saturating_sub(LONGEST_END)))?;
    input.by_ref().take(LONGEST_END).read_to_end(&mut end)?;
    input.seek(SeekFrom::Start(0))?;
    if end.windows(END.len()).any(|part| part == END) {
        return Ok(());
    }
    Err(BadFile::damaged("it is a zip archive and its end is missing, as after a download that broke off"))
}

/// The folder with the pickle. `torch.save` names it after the file, or `archive`.
fn folder<R: Read + Seek>(zip: &ZipArchive<R>) -> Result<String, BadFile> {
    let names: Vec<_> = zip.file_names().filter_map(Result::ok).collect();
    let folders = names.iter().filter_map(|name| name.strip_suffix("data.pkl"));
    let mut folders = folders.filter(|folder| folder.find('/') == Some(folder.len().saturating_sub(1)));
    folders.next().map(str::to_owned).ok_or_else(|| {
        let names: Vec<String> = names.iter().map(|name| shown(name)).collect();
        let has = crate::snapshot::listed(&names);
        BadFile::Other(format!("it is a zip archive, but not one of torch.save: it has no data.pkl, but {has}"))
    })
}

fn of_zip(what: &str) -> impl FnOnce(ZipError) -> BadFile {
    let what = shown(what);
    move |error| match error {
        ZipError::Io(error) => BadFile::Damaged(format!("{what}: {error}")),
        error => BadFile::Damaged(format!("it is a zip archive of which {what} cannot be found: {error}")),
    }
}

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
        let pickle = parse(&mut reader)?;
        let keys = parse::<Object>(&mut reader)?;
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
    let magic = parse::<Object>(reader)?;
    if !matches!(magic.root(), Value::Long(number) if number[..] == MAGIC) {
        return Err(BadFile::Other("it is a pickle, but not one of torch.save".into()));
    }
    let version = parse::<Object>(reader)?;
    if !matches!(version.root(), Value::Int(VERSION)) {
        let why = format!("its version of torch.save's old format is {:?}, and {VERSION} is known", version.root());
        return Err(BadFile::Other(why));
    }
    Ok(parse::<Object>(reader).map(drop)?) // of the machine: the sizes of its integers
}

/// The dtype of each storage, which alone determines the bytes per element.
fn kinds(pickle: &Pickle) -> HashMap<&str, Kind> {
    let storages = pickle.values().filter_map(|value| match value {
        Value::Object(Object::Storage(storage)) => Some((storage.key, storage.kind)),
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
