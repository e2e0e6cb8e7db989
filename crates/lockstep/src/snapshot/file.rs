//! The header of a snapshot's file, which describes it: safetensors with a checksum.
//!
//! [`super::contents`] has the tensors' bytes.

use std::cmp::Ordering;
use std::ops::Range;

use crc32fast::Hasher;
use safetensors::tensor::{Metadata, TensorInfo};
use serde_json::{Map, Value};
use tch::Tensor;

use super::error::{BadSnapshot, SnapshotError};
use super::fence::Attempt;
use super::meta::{Meta, SCHEMA};
use super::tensor_view::info;

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

/// The header of a complete file, parsed: its tensors follow each other without gaps, and each is as long as its shape says.
pub(super) struct Header(Metadata);

impl Header {
    /// Parses `start`, the length and the header.
    pub(super) fn parse(start: &[u8]) -> Result<Self, BadSnapshot> {
        Self::of_json(start.get(LENGTH..).unwrap_or_default())
    }

    /// Parses the header without its length.
    pub(super) fn of_json(header: &[u8]) -> Result<Self, BadSnapshot> {
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
pub(super) fn check_ends(header: &[u8], has: u64) -> Result<(), BadSnapshot> {
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

/// Returns true if a header, or the beginning of one, was written by this module with this schema.
pub(super) fn is_our_header(header: &[u8]) -> bool {
    let has = |label: String| header.windows(label.len()).any(|part| part == label.as_bytes());
    has(format!("\"{CHECKSUM_KEY}\":\"")) && has(format!("\"{SCHEMA_KEY}\":\"{SCHEMA}\""))
}

/// The attempt that wrote a file with this header.
pub(super) fn attempt(header: &[u8]) -> Option<Attempt> {
    let entries: Map<String, Value> = serde_json::from_slice(header).ok()?;
    let meta = entries.get("__metadata__")?.get(META_KEY)?.as_str()?;
    serde_json::from_str::<Meta>(meta).ok()?.attempt
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

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;
    use tch::nn::{self, VarStore};
    use tch::{Device, Kind};

    use super::super::contents::{Contents, Memory};
    use super::super::meta::{Run, Snapshot};
    use super::super::tensor_view::KINDS;
    use super::*;
    use crate::loader::Position;
    use crate::optim::{Adam, AdamOptions, Optimizer, State, StateMeta, named_parameters};

    fn meta(optimizer: StateMeta) -> Meta {
        let run = Run { seed: u64::MAX, samples: 50, data: 7, batch_size: 8 };
        Meta {
            position: Position { epoch: 3, step: 2, samples: 16 },
            run,
            world_size: 2,
            threads: 1,
            optimizer,
            jobs: Vec::new(),
            attempt: None,
            sharded: None,
        }
    }

    fn sealed(meta: &Meta, tensors: &[(String, Tensor)]) -> Vec<u8> {
        bytes(&Contents::new(meta, None, tensors, Memory::Shared).unwrap())
    }

    /// The bytes of the file that would be written.
    fn bytes(contents: &Contents) -> Vec<u8> {
        let mut bytes = Vec::new();
        let (place, digits) = contents.pieces(|piece| bytes.write_all(piece)).unwrap().digits();
        bytes[place..place + digits.len()].copy_from_slice(digits.as_bytes());
        bytes
    }

    fn decode(mut bytes: &[u8]) -> Result<Snapshot, BadSnapshot> {
        let has = bytes.len() as u64;
        Contents::read(&mut bytes, has)?.snapshot()
    }

    fn check(bytes: &[u8]) -> Result<(), BadSnapshot> {
        decode(bytes).map(drop)
    }

    fn small() -> Vec<u8> {
        let tensors = vec![("model.w".to_owned(), Tensor::from_slice(&[1.5f32, -0.0]))];
        sealed(&meta(StateMeta { groups: Vec::new() }), &tensors)
    }

    /// One parameter after three steps of Adam.
    fn adam() -> (VarStore, Adam) {
        let vs = VarStore::new(Device::Cpu);
        let mut weight = vs.root().var("w", &[3], nn::Init::Const(0.3));
        let mut optimizer = Adam::new(named_parameters(&vs), AdamOptions { lr: 0.1, ..Default::default() }).unwrap();
        for _ in 0..3 {
            optimizer.zero_grad();
            (&weight * &weight).sum(Kind::Float).backward();
            optimizer.step().unwrap();
        }
        weight = weight.detach();
        assert_ne!(weight.double_value(&[0]), 0.3);
        (vs, optimizer)
    }

    #[test]
    fn brings_back_every_dtype_and_shape_with_its_bits() {
        let there = |kind| {
            let shape: &[i64] = if kind == Kind::Double { &[] } else { &[2, 3] };
            (Tensor::arange(6, (Kind::Float, Device::Cpu)) - 1)
                .to_kind(kind)
                .narrow(0, 0, shape.iter().product())
                .view(shape)
        };
        let named = KINDS.map(|(kind, _)| (format!("model.{kind:?}"), there(kind)));
        let empty = ("model.empty".to_owned(), Tensor::zeros([0, 4], (Kind::Float, Device::Cpu)));
        let turned = ("model.turned".to_owned(), there(Kind::Float).transpose(0, 1));
        let mut all: Vec<_> = named.into_iter().chain([empty, turned]).collect();
        all.sort_by_key(|(_, tensor)| std::cmp::Reverse(tensor.kind().elt_size_in_bytes()));
        let back = decode(&sealed(&meta(StateMeta { groups: Vec::new() }), &all)).unwrap();
        assert_eq!(back.model.len(), all.len());
        for (name, tensor) in all {
            let saved = &back.model[name.strip_prefix("model.").unwrap()];
            assert_eq!((saved.kind(), saved.size()), (tensor.kind(), tensor.size()), "{name}");
            assert!(saved.equal(&tensor), "{name}");
        }
    }

    #[test]
    fn brings_back_an_optimizer_that_takes_the_same_next_step() {
        let (vs, mut one) = adam();
        let state = one.state_dict().unwrap();
        let described = meta(state.meta().clone());
        let tensors = state.tensors().into_iter().map(|(name, tensor)| (format!("optimizer.{name}"), tensor));
        let back = decode(&sealed(&described, &tensors.collect::<Vec<_>>())).unwrap();
        assert_eq!(back.meta, described);

        let (other, mut two) = adam();
        two.load_state_dict(State::new(back.meta.optimizer, back.optimizer)).unwrap();
        for (vs, optimizer) in [(&vs, &mut one), (&other, &mut two)] {
            optimizer.zero_grad();
            vs.trainable_variables()[0].sum(Kind::Float).backward();
            optimizer.step().unwrap();
        }
        assert_eq!(vs.trainable_variables()[0], other.trainable_variables()[0]);
    }

    /// The file that `scripts/golden/snapshot.py` writes.
    fn written(extra: Option<&str>) -> Vec<u8> {
        let params = vec![crate::optim::ParamMeta { name: "w".into(), step: 3 }];
        let options = crate::optim::SgdOptions { lr: 0.01, momentum: 0.9, ..Default::default() };
        let group = crate::optim::GroupMeta { options: crate::optim::GroupOptions::Sgd(options), params };
        let tensors = vec![
            ("model.n".to_owned(), Tensor::from(-5i64)),
            ("model.w".to_owned(), Tensor::from_slice(&[1.5f32, -0.0])),
            ("optimizer.momentum_buffer.w".to_owned(), Tensor::from_slice(&[0.25f32, 2.0])),
        ];
        bytes(&Contents::new(&meta(StateMeta { groups: vec![group] }), extra, &tensors, Memory::Shared).unwrap())
    }

    #[test]
    fn writes_the_same_bytes_as_before() {
        let golden = include_bytes!("../../golden/snapshot.safetensors");
        let here = written(None);
        assert_eq!(String::from_utf8_lossy(&here), String::from_utf8_lossy(golden));
        assert!(here == golden);
        assert_eq!(decode(golden).unwrap().extra, None);
    }

    #[test]
    fn writes_and_reads_the_runs_own_state_within_the_checksum() {
        let golden = include_bytes!("../../golden/snapshot_state.safetensors");
        let state = serde_json::json!({"best": 0.1, "name": "é \"lockstep.crc32\":\"00000000\""}).to_string();
        let here = written(Some(&state));
        assert_eq!(String::from_utf8_lossy(&here), String::from_utf8_lossy(golden));
        assert!(here == golden);
        assert_eq!(decode(golden).unwrap().extra.as_ref(), Some(&state));
        let at = golden.windows(4).position(|part| part == b"best").unwrap();
        let mut damaged = golden.to_vec();
        damaged[at] = b'r';
        assert!(matches!(check(&damaged), Err(BadSnapshot::Damaged { .. })));
    }

    #[test]
    fn reports_a_file_cut_at_any_byte_as_torn() {
        let whole = small();
        for end in 0..whole.len() {
            let bad = check(&whole[..end]).unwrap_err();
            assert!(matches!(bad, BadSnapshot::Torn { has, .. } if has == end as u64), "cut at {end}: {bad}");
        }
        check(&whole).unwrap();
    }

    #[test]
    fn notices_every_flipped_bit() {
        let mut bytes = small();
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(check(&bytes).is_err(), "bit {} of byte {}", bit % 8, bit / 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn shows_both_checksums_of_damaged_data() {
        let mut bytes = small();
        *bytes.last_mut().unwrap() ^= 1;
        let message = check(&bytes).unwrap_err().to_string();
        assert!(message.starts_with("it is damaged: its checksum is "), "{message}");
    }

    #[test]
    fn shares_memory_or_copies_it_and_writes_the_same_bytes() {
        let meta = meta(StateMeta { groups: Vec::new() });
        let long = 3 * 1024 * 1024 + 7; // several pieces, the last of them short
        let mut weights = Tensor::arange(long, (Kind::Uint8, Device::Cpu));
        let named = [("model.w".to_owned(), weights.shallow_clone())];
        let [shared, copied] =
            [Memory::Shared, Memory::Copied].map(|memory| Contents::new(&meta, None, &named, memory).unwrap());
        let before = bytes(&copied);
        assert!(bytes(&shared) == before);
        assert_eq!(shared.bytes(), before.len() as u64);
        let _ = weights.fill_(9);
        assert!(bytes(&copied) == before);
        let changed = decode(&bytes(&shared)).unwrap().model.remove("w").unwrap();
        assert!(changed.equal(&weights));
    }

    #[test]
    fn a_rank_that_receives_a_snapshot_notices_what_differs_from_its_header() {
        let small = small();
        let mut sent = Contents::read(&mut &small[..], small.len() as u64).unwrap();
        let mut received = Contents::to_receive(sent.header().to_vec()).unwrap();
        assert!(matches!(received.check(), Err(BadSnapshot::Damaged { .. })));
        received.tensors_mut().iter_mut().zip(sent.tensors_mut()).for_each(|(here, there)| here.copy_(there));
        received.check().unwrap();
        assert!(bytes(&received) == small);
    }

    #[test]
    fn refuses_bytes_after_the_end() {
        let longer = [small(), vec![0]].concat();
        assert!(matches!(check(&longer), Err(BadSnapshot::NotOurs(_))));
    }

    #[test]
    fn names_both_schemas_of_an_intact_file() {
        let text = String::from_utf8_lossy(&small()).into_owned();
        assert!(text.contains(r#""lockstep.schema":"1""#));
        let mut bytes = small();
        let at = bytes.windows(20).position(|part| part == br#"lockstep.schema":"1""#).unwrap();
        bytes[at + 18] = b'7';
        let (header, data) = bytes.split_at_mut(LENGTH + header_length(&small(), u64::MAX).unwrap());
        let mut checksum = Checksum::of(header).unwrap();
        checksum.update(data);
        let (place, digits) = checksum.digits();
        header[place..place + digits.len()].copy_from_slice(digits.as_bytes());
        let message = check(&bytes).unwrap_err().to_string();
        assert!(message.contains(r#"schema "7""#) && message.contains("reads 1"), "{message}");
    }

    #[test]
    fn refuses_files_of_others() {
        let tensor = Tensor::from_slice(&[1.0f32]);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights.safetensors");
        Tensor::write_safetensors(&[("w", &tensor)], &path).unwrap();
        assert!(matches!(Snapshot::read(&path), Err(BadSnapshot::NotOurs(_))));
        assert!(matches!(Snapshot::read(folder.path()), Err(BadSnapshot::Unreadable(_))));
        assert!(matches!(Snapshot::read(&folder.path().join("none")), Err(BadSnapshot::Unreadable(_))));
    }

    #[test]
    fn names_a_tensor_that_the_format_cannot_hold() {
        let complex = Tensor::zeros([1], (Kind::ComplexFloat, Device::Cpu));
        let meta = meta(StateMeta { groups: Vec::new() });
        let error = Contents::new(&meta, None, &[("model.z".into(), complex)], Memory::Shared).err().unwrap();
        assert!(error.to_string().contains("model.z"), "{error}");
    }

    proptest! {
        #[test]
        fn never_panics_over_any_bytes(head in 0u64..200, bytes: Vec<u8>) {
            let with_length = [&head.to_le_bytes()[..], &bytes].concat();
            prop_assert!(check(&bytes).is_err() && check(&with_length).is_err());
        }

        #[test]
        fn never_panics_over_any_header(offsets: [u64; 2], shape: Vec<u64>) {
            let header = serde_json::json!({"model.w": {"dtype": "F32", "shape": shape, "data_offsets": offsets}}).to_string();
            let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
            prop_assert!(check(&bytes).is_err());
        }
    }
}
