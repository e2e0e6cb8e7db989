//! The file of a snapshot: safetensors with a checksum. Its header, read defensively, and tensors in safetensors' terms.
//!
//! The name of a file proves nothing about its contents: nothing waits for a pipe or a device under that name, and a file is read only as far
//! as its contents have been validated. [`super::contents`] has the tensors' bytes.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crc32fast::Hasher;
use rustix::fs::OFlags;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tch::{Kind, Tensor};

use super::contents::Contents;
use super::error::{BadSnapshot, SnapshotError};
use super::meta::{Attempt, Meta, SCHEMA};

const SCHEMA_KEY: &str = "lockstep.schema";
const META_KEY: &str = "lockstep.snapshot";
/// Sorts after the other names: entries are written in that order, so the beginning of a header contains the others.
const STATE_KEY: &str = "lockstep.state";
const CHECKSUM_KEY: &str = "lockstep.crc32";
/// Takes the checksum's place while it is computed.
const UNSEALED: &str = "00000000";
/// A safetensors file begins with the length of its header: this many bytes, little-endian.
pub(super) const LENGTH: usize = 8;
/// Maximum length of the header in the format, in bytes (`MAX_HEADER_SIZE` of the crate safetensors).
const LONGEST_HEADER: u64 = 100_000_000;
/// How many bytes of a header are read to find its owner: the metadata come first in it.
const GLANCE: u64 = 64 * 1024;
/// How the headers of this module begin: the names of entries are sorted.
const BEGINNING: &str = "{\"__metadata__\":{\"format\":\"pt\",\"lockstep.crc32\":\"";
/// How files begin that other programs write next to training runs.
const MAGIC: [(&[u8], &str); 11] = [
    (b"PK\x03\x04", "an archive, as torch.save and numpy.savez write"),
    (b"\x80\x02", "a pickle"),
    (b"\x80\x03", "a pickle"),
    (b"\x80\x04", "a pickle"),
    (b"\x80\x05", "a pickle"),
    (b"\x93NUMPY", "an array of NumPy"),
    (b"\x89HDF", "an HDF5 file"),
    (b"GGUF", "a GGUF file"),
    (b"\x89PNG", "a picture"),
    (b"\x1f\x8b", "compressed"),
    (b"\x7fELF", "a program"),
];
/// The kinds of tensors in a file.
pub(super) const KINDS: [(Kind, Dtype); 10] = [
    (Kind::Float, Dtype::F32),
    (Kind::Double, Dtype::F64),
    (Kind::Half, Dtype::F16),
    (Kind::BFloat16, Dtype::BF16),
    (Kind::Int64, Dtype::I64),
    (Kind::Int, Dtype::I32),
    (Kind::Int16, Dtype::I16),
    (Kind::Int8, Dtype::I8),
    (Kind::Uint8, Dtype::U8),
    (Kind::Bool, Dtype::BOOL),
];

/// Distinguishes snapshots without reading their tensors.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Summary {
    /// The file's length in bytes.
    pub(super) bytes: u64,
    /// The checksum in its header.
    pub(super) checksum: Option<String>,
    /// The jobs that own it.
    pub(super) jobs: Vec<String>,
}

/// The header of a complete file, parsed: its tensors follow each other without gaps, and each is as long as its shape says.
pub(super) struct Header(Metadata);

impl Header {
    /// Parses `start`, the length and the header.
    pub(super) fn parse(start: &[u8]) -> Result<Self, BadSnapshot> {
        Self::of_json(start.get(LENGTH..).unwrap_or_default())
    }

    /// Parses the header without its length.
    fn of_json(header: &[u8]) -> Result<Self, BadSnapshot> {
        serde_json::from_slice(header).map(Header).map_err(not_ours)
    }

    /// The names of all tensors, in the order of their bytes, with their shapes.
    pub(super) fn tensors(&self) -> impl Iterator<Item = (String, &TensorInfo)> {
        self.0.offset_keys().into_iter().filter_map(|name| self.0.info(&name).map(|info| (name.clone(), info)))
    }

    /// The description, which is there if this module has written the file with this schema.
    pub(super) fn meta(&self) -> Result<Meta, BadSnapshot> {
        let text = |key: &str| self.text(key).ok_or_else(|| BadSnapshot::NotOurs(format!("no {key} in its metadata")));
        let schema = text(SCHEMA_KEY)?;
        if schema != SCHEMA.to_string() {
            return Err(BadSnapshot::Schema { found: schema.to_owned(), here: SCHEMA });
        }
        serde_json::from_str(text(META_KEY)?).map_err(|error| BadSnapshot::NotOurs(format!("{META_KEY}: {error}")))
    }

    /// The program's own state.
    pub(super) fn extra(&self) -> Option<String> {
        self.text(STATE_KEY).map(str::to_owned)
    }

    fn text(&self, key: &str) -> Option<&str> {
        self.0.metadata().as_ref()?.get(key).map(String::as_str)
    }
}

/// The length and the header of a file with these tensors, without the checksum.
pub(super) fn unsealed(
    meta: &Meta,
    extra: Option<&str>,
    tensors: &[(String, Tensor)],
) -> Result<Vec<u8>, SnapshotError> {
    let infos = tensors.iter().map(|(name, tensor)| Ok((name.clone(), info(name, tensor)?)));
    let mut infos: Vec<(String, TensorInfo)> = infos.collect::<Result<_, SnapshotError>>()?;
    infos.iter_mut().fold(0, |at, (_, info)| {
        info.data_offsets = (at, at + info.data_offsets.1);
        info.data_offsets.1
    });
    Ok(header(meta, extra, &infos))
}

/// The checksum as it stands in the header, and its place in the file.
pub(super) struct Checksum {
    place: Range<usize>,
    hasher: Hasher,
}

impl Checksum {
    /// The sum of `start`, the length and the header, so far.
    pub(super) fn of(start: &[u8]) -> Result<Self, BadSnapshot> {
        let none = || BadSnapshot::NotOurs(format!("no {CHECKSUM_KEY} in its metadata"));
        let place = checksum_place(start).ok_or_else(none)?;
        let mut hasher = Hasher::new();
        let parts = [&start[..place.start], UNSEALED.as_bytes(), &start[place.end..]];
        parts.into_iter().for_each(|part| hasher.update(part));
        Ok(Checksum { place, hasher })
    }

    /// Adds the bytes that follow.
    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
    }

    /// Compares the sum of all bytes with the one that the header has.
    pub(super) fn check(self, start: &[u8]) -> Result<(), BadSnapshot> {
        let written = String::from_utf8_lossy(&start[self.place.clone()]).into_owned();
        let (_, found) = self.digits();
        if found == written { Ok(()) } else { Err(BadSnapshot::Damaged { found, written }) }
    }

    /// Where in the file the sum of all bytes belongs, and its digits.
    pub(super) fn digits(self) -> (usize, String) {
        (self.place.start, format!("{:08x}", self.hasher.finalize()))
    }
}

/// The length of the header according to `start`, the first bytes of a file of `has` bytes, checked against the file's length.
pub(super) fn header_length(start: &[u8], has: u64) -> Result<usize, BadSnapshot> {
    let Some(length) = start.first_chunk::<LENGTH>().map(|length| u64::from_le_bytes(*length)) else {
        return Err(BadSnapshot::Torn { has, wants: LENGTH as u64 });
    };
    if length > LONGEST_HEADER {
        return Err(BadSnapshot::NotOurs("it does not begin with the length of a header".into()));
    }
    let wants = length + LENGTH as u64;
    if wants > has { Err(BadSnapshot::Torn { has, wants }) } else { Ok(length as usize) }
}

/// Checks that a file of `has` bytes ends where its header says: a shorter one is torn, a longer one was not written by this
/// module.
fn check_ends(header: &[u8], has: u64) -> Result<(), BadSnapshot> {
    let ends = |value: &Value| value["data_offsets"][1].as_u64();
    let entries: Map<String, Value> = serde_json::from_slice(header).map_err(not_ours)?;
    let data = entries.values().filter_map(ends).max().unwrap_or(0);
    let wants = ((LENGTH + header.len()) as u64).saturating_add(data);
    match has.cmp(&wants) {
        Ordering::Less => Err(BadSnapshot::Torn { has, wants }),
        Ordering::Equal => Ok(()),
        Ordering::Greater => Err(BadSnapshot::NotOurs("its length does not fit its header".into())),
    }
}

/// The checksum in a header and the jobs that own the file, as far as they can be read.
pub(super) fn identity(header: &[u8]) -> (Option<String>, Vec<String>) {
    let entries: Map<String, Value> = serde_json::from_slice(header).unwrap_or_default();
    let text = |key: &str| entries.get("__metadata__")?.get(key)?.as_str();
    let meta = text(META_KEY).and_then(|meta| serde_json::from_str::<Value>(meta).ok()).unwrap_or_default();
    let jobs = meta["jobs"].as_array().into_iter().flatten().filter_map(Value::as_str);
    (text(CHECKSUM_KEY).map(str::to_owned), jobs.map(str::to_owned).collect())
}

/// The place of the checksum's digits in the header. Inside a JSON string the quotes would be escaped.
fn checksum_place(bytes: &[u8]) -> Option<Range<usize>> {
    let length = u64::from_le_bytes(*bytes.first_chunk::<LENGTH>()?);
    let header = bytes.get(LENGTH..LENGTH.checked_add(usize::try_from(length).ok()?)?)?;
    let label = format!("\"{CHECKSUM_KEY}\":\"");
    let at = header.windows(label.len()).position(|part| part == label.as_bytes())? + label.len();
    header.get(at..at + UNSEALED.len()).map(|_| LENGTH + at..LENGTH + at + UNSEALED.len())
}

pub(super) fn not_ours(error: impl std::fmt::Display) -> BadSnapshot {
    BadSnapshot::NotOurs(error.to_string())
}

/// The length and the header, padded so that the data begins at a multiple of 8 bytes.
fn header(meta: &Meta, extra: Option<&str>, infos: &[(String, TensorInfo)]) -> Vec<u8> {
    // Numbers, texts and lists with text keys can always be written as JSON.
    let json = |value| serde_json::to_string(&value).expect("a snapshot's description is JSON");
    let meta = serde_json::to_string(meta).expect("a snapshot's description is JSON");
    let texts = [("format", "pt"), (CHECKSUM_KEY, UNSEALED), (SCHEMA_KEY, &SCHEMA.to_string()), (META_KEY, &meta)];
    let texts = texts.into_iter().chain(extra.map(|extra| (STATE_KEY, extra)));
    let texts: Map<String, Value> = texts.map(|(key, text)| (key.to_owned(), text.into())).collect();
    let mut entries: Map<String, Value> = Map::from_iter([("__metadata__".to_owned(), Value::Object(texts))]);
    for (name, info) in infos {
        entries.insert(name.clone(), serde_json::json!(info));
    }
    let mut header = json(Value::Object(entries)).into_bytes();
    header.resize(header.len().next_multiple_of(LENGTH), b' ');
    [&(header.len() as u64).to_le_bytes()[..], &header].concat()
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
    let header = header_length(&start, has)?;
    append(file, header as u64, &mut start)?;
    check_ends(start.get(LENGTH..).unwrap_or_default(), has)?;
    Ok(start)
}

/// Opens `path` for reading if it is a regular file; does not wait for a pipe's writer.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"))
}

/// Information from the header of the file at `path`; the tensors are not read, and may be torn or damaged.
pub(super) fn summary(path: &Path) -> Result<Summary, BadSnapshot> {
    let (bytes, header) = read_header(path)?;
    let (checksum, jobs) = identity(&header);
    Ok(Summary { bytes, checksum, jobs })
}

/// The description in the header of the file at `path`; the tensors are not read.
pub(super) fn meta(path: &Path) -> Result<Meta, BadSnapshot> {
    Header::of_json(&read_header(path)?.1)?.meta()
}

/// The attempt that wrote the file at `path`; `None` if its header does not say.
pub(super) fn attempt(path: &Path) -> Option<Attempt> {
    let entries: Map<String, Value> = serde_json::from_slice(&read_header(path).ok()?.1).ok()?;
    let meta = entries.get("__metadata__")?.get(META_KEY)?.as_str()?;
    serde_json::from_str::<Meta>(meta).ok()?.attempt
}

/// The file's length, and its header.
fn read_header(path: &Path) -> Result<(u64, Vec<u8>), BadSnapshot> {
    let mut file = open_regular(path)?;
    let (bytes, mut start) = (file.metadata()?.len(), Vec::new());
    append(&mut file, LENGTH as u64, &mut start)?;
    let length = header_length(&start, bytes)?;
    append(&mut file, length as u64, &mut start)?;
    Ok((bytes, start.split_off(LENGTH.min(start.len()))))
}

/// Returns true if the file at `path` has the length that its header says.
pub(super) fn is_whole(path: &Path) -> bool {
    let read = || {
        let mut file = open_regular(path)?;
        let has = file.metadata()?.len();
        read_start(&mut file, has)
    };
    read().is_ok()
}

/// Whose a file is that has the name of a snapshot or of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// This module's, in this schema; perhaps torn or damaged. A save may replace it.
    Ours,
    /// The file does not tell, as after damage to its beginning. A save keeps it under another name.
    Unclear,
    /// Somebody else's, of this kind. No save may touch it.
    Another(String),
}

/// Whose the file at `path` is, by its kind and its beginning.
pub(super) fn owner(path: &Path) -> Owner {
    let mut start = Vec::new();
    let read = open_regular(path).and_then(|file| file.take(LENGTH as u64 + GLANCE).read_to_end(&mut start));
    if let Err(error) = read {
        // Names a folder, and a link to nowhere.
        let what = lockstep_paths::check_file(path).map_or_else(|why| why.to_string(), |()| error.to_string());
        return Owner::Another(what);
    }
    match mark(&start) {
        Some(Mark::Schema(found)) => match Contents::of_file(path) {
            Ok(_) => Owner::Another(BadSnapshot::Schema { found, here: SCHEMA }.to_string()),
            // Damage may have changed the number.
            Err(_) => Owner::Unclear,
        },
        Some(Mark::Ours) => Owner::Ours,
        None => another(path, &start).map_or(Owner::Unclear, Owner::Another),
    }
}

/// What shows that this module wrote a file.
#[derive(Debug, PartialEq)]
enum Mark {
    /// It has names of entries of ours, or it is too short for them and as far as it goes begins as all of ours do.
    Ours,
    /// It has names of entries, and the number of another schema.
    Schema(String),
}

/// The mark in the first bytes of a file. A damaged byte spoils one name of an entry; the others still show.
fn mark(start: &[u8]) -> Option<Mark> {
    let (length, header) = start.split_at(LENGTH.min(start.len()));
    let after = |key: &str| {
        let label = format!("\"{key}\":\"");
        header.windows(label.len()).position(|part| part == label.as_bytes()).map(|at| &header[at + label.len()..])
    };
    let digits =
        |text: &[u8]| text.iter().map_while(|byte| byte.is_ascii_digit().then_some(char::from(*byte))).collect();
    let schema = after(SCHEMA_KEY).filter(|text| text.contains(&b'"')).map(digits);
    match schema {
        Some(found) if found != SCHEMA.to_string() => return Some(Mark::Schema(found)),
        Some(_) => return Some(Mark::Ours),
        None => {}
    }
    // Up to three bytes of text are a length as well.
    let torn = header.len() < BEGINNING.len()
        && is_length(length)
        && BEGINNING.as_bytes().starts_with(header)
        && (start.is_empty() || !is_text(start));
    (torn || after(CHECKSUM_KEY).is_some() || after(META_KEY).is_some()).then_some(Mark::Ours)
}

/// Returns true if these bytes, all eight or the first of them, may be the length of a header that [`header`] has written.
fn is_length(bytes: &[u8]) -> bool {
    let mut whole = [0; LENGTH];
    whole[..bytes.len()].copy_from_slice(bytes);
    let length = u64::from_le_bytes(whole);
    length <= LONGEST_HEADER && length.is_multiple_of(LENGTH as u64)
}

/// What a file that has no mark of ours surely is.
fn another(path: &Path, start: &[u8]) -> Option<String> {
    if start.len() < LENGTH && is_length(start) {
        return None;
    }
    if read_header(path).is_ok_and(|(_, header)| Header::of_json(&header).is_ok()) {
        return Some("it is a safetensors file of another program".into());
    }
    if let Some((_, what)) = MAGIC.iter().find(|(magic, _)| start.starts_with(magic)) {
        return Some(format!("it is {what}"));
    }
    is_text(start).then(|| "it is a text".into())
}

fn is_text(start: &[u8]) -> bool {
    let is_control = |byte: &u8| byte.is_ascii_control() && !byte.is_ascii_whitespace() && *byte != 0x1b;
    // The last character may be cut.
    let is_utf8 = std::str::from_utf8(start).map_or_else(|error| error.error_len().is_none(), |_| true);
    is_utf8 && !start.iter().any(is_control)
}

fn append(file: &mut impl Read, count: u64, bytes: &mut Vec<u8>) -> io::Result<()> {
    let fits = usize::try_from(count).is_ok_and(|count| bytes.try_reserve_exact(count).is_ok());
    if !fits {
        return Err(io::Error::new(io::ErrorKind::OutOfMemory, format!("{count} bytes do not fit into memory")));
    }
    file.take(count).read_to_end(bytes).map(drop)
}

/// A tensor's bytes on the CPU, in the form that safetensors' own writer expects.
pub(crate) struct View {
    dtype: Dtype,
    shape: Vec<usize>,
    data: Vec<u8>,
}

impl View {
    /// Copies the tensor, which the file will store under `name`.
    pub(crate) fn new(name: &str, tensor: &Tensor) -> Result<Self, SnapshotError> {
        let TensorInfo { dtype, shape, data_offsets: (_, length) } = info(name, tensor)?;
        let mut data = vec![0; length];
        let copied = tensor.detach().f_copy_data_u8(&mut data, tensor.numel());
        copied.map_err(|source| SnapshotError::Tensor { name: name.to_owned(), source })?;
        Ok(View { dtype, shape, data })
    }
}

impl safetensors::View for View {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        (&self.data).into()
    }

    fn data_len(&self) -> usize {
        self.data.len()
    }
}

/// Its second offset holds its length for now.
pub(super) fn info(name: &str, tensor: &Tensor) -> Result<TensorInfo, SnapshotError> {
    let kind = tensor.kind();
    let dtype = dtype(kind).ok_or_else(|| SnapshotError::Kind { name: name.to_owned(), kind })?;
    let data_offsets = (0, tensor.numel() * kind.elt_size_in_bytes());
    Ok(TensorInfo { dtype, shape: shape(tensor), data_offsets })
}

/// Dimensions are never negative.
pub(super) fn shape(tensor: &Tensor) -> Vec<usize> {
    tensor.size().into_iter().map(|size| size as usize).collect()
}

/// The tensor of these bytes, if libtorch has the dtype.
pub(crate) fn tensor(dtype: Dtype, shape: &[usize], data: &[u8]) -> Option<Tensor> {
    let size: Vec<i64> = shape.iter().map(|&size| size as i64).collect();
    Tensor::f_from_data_size(data, &size, kind(dtype)?).ok()
}

/// libtorch's name of a dtype, if it has it.
pub(super) fn kind(dtype: Dtype) -> Option<Kind> {
    KINDS.iter().find(|(_, known)| *known == dtype).map(|(kind, _)| *kind)
}

/// safetensors' name of a kind of tensor, if it has one.
pub(super) fn dtype(kind: Kind) -> Option<Dtype> {
    KINDS.iter().find(|(known, _)| *known == kind).map(|(_, dtype)| *dtype)
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
            assert!(bad.to_string().contains("not a regular file"), "{bad}");
            assert!(matches!(owner(path), Owner::Another(_)));
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

    /// A small snapshot's bytes, and the length of its header.
    fn snapshot() -> (Vec<u8>, usize) {
        let position = crate::loader::Position { epoch: 2, step: 3, samples: 24 };
        let run = super::super::meta::Run { seed: 1, samples: 50, data: 0xabc, batch_size: 4 };
        let optimizer = crate::optim::StateMeta { groups: Vec::new() };
        let meta = Meta { position, run, optimizer, world_size: 2, threads: 1, ..Meta::default() };
        let tensors = [("model.w".to_owned(), Tensor::from_slice(&[1.0f32, 2.0]))];
        let contents = Contents::new(&meta, None, &tensors, super::super::contents::Memory::Shared).unwrap();
        let contents = contents.sealed().unwrap();
        let mut bytes = Vec::new();
        contents.pieces(|piece| io::Write::write_all(&mut bytes, piece)).unwrap();
        (bytes, contents.header().len())
    }

    fn owner_of(bytes: &[u8]) -> Owner {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), bytes).unwrap();
        owner(file.path())
    }

    #[test]
    fn knows_its_files_when_they_are_torn_anywhere_and_takes_no_damaged_one_for_anothers() {
        let (whole, header) = snapshot();
        assert_eq!(
            Contents::read(&mut &whole[..], whole.len() as u64).map(drop).map_err(|bad| bad.to_string()),
            Ok(())
        );
        for length in 0..=whole.len() {
            // Up to three bytes may also be a text.
            let expected =
                if (1..4).contains(&length) && is_text(&whole[..length]) { Owner::Unclear } else { Owner::Ours };
            assert_eq!(owner_of(&whole[..length]), expected, "cut to {length} bytes");
            let zeroed = [&vec![0; length][..], &whole[length..]].concat();
            assert!(!matches!(owner_of(&zeroed), Owner::Another(_)), "{length} bytes zeroed");
        }
        for at in 0..header {
            for mask in [1, 0x80, 0xff] {
                let mut flipped = whole.clone();
                flipped[at] ^= mask;
                assert!(!matches!(owner_of(&flipped), Owner::Another(_)), "byte {at} flipped by {mask}");
            }
        }
        let noise: Vec<u8> = (0..500_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let header_of = |text: &[u8]| [&(text.len() as u64).to_le_bytes()[..], text, &noise].concat();
        for damaged in
            [&vec![0; 9][..], &vec![0xff; 300], &noise, &header_of(b"{\"no\": \"tensors\"}"), &header_of(b"{{{{{{{{")]
        {
            assert_eq!(owner_of(damaged), Owner::Unclear, "{damaged:?}");
        }
    }

    #[test]
    fn knows_what_is_surely_anothers() {
        let safetensors = br#"{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
        let safetensors = [&(safetensors.len() as u64).to_le_bytes()[..], safetensors, b"x"].concat();
        let pickled = b"\x80\x04\x95\0\0\0\0\0\0\0\0.";
        for (bytes, what) in [
            (&safetensors[..], "safetensors file of another program"),
            (b"PK\x03\x04\x14\0\0\0\x08", "an archive"),
            (pickled, "a pickle"),
            (b"notes", "a text"),
            ("é: ein Text".as_bytes(), "a text"),
            (b"{\"epoch\": 3}\n", "a text"),
        ] {
            assert!(matches!(owner_of(bytes), Owner::Another(said) if said.contains(what)), "{what}");
        }
    }
}
