//! The bytes of a snapshot: converts tensors and a description to a safetensors file with a checksum, and back.
//!
//! Touches no files: see [`super::source`].

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};

use safetensors::tensor::TensorInfo;
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tch::{Kind, Tensor};

use super::error::{BadSnapshot, SnapshotError};
use super::fence::Attempt;
use crate::loader::Position;
use crate::optim::StateMeta;

/// The version of the format. The checksum is independent of it: all versions have it in the same place.
pub const SCHEMA: u32 = 1;

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

/// The description in a snapshot, besides its tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Meta {
    /// Where training continues.
    pub position: Position,
    /// What the order of the data depends on.
    pub run: Run,
    /// The world size.
    pub world_size: usize,
    /// The number of libtorch's intra-op threads: another number rounds sums differently.
    pub threads: i32,
    /// The optimizer: its kind, options and step counts.
    pub optimizer: StateMeta,
    /// The job that saved it, by the names of all its launchers; `None` for a process without a launcher.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<String>,
    /// Which start of the scheduler's job saved it; `None` without a scheduler that counts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<Attempt>,
}

/// Everything that determines the order of the data, and so the meaning of a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// The seed of shuffling and of all other random choices.
    pub seed: u64,
    /// The length of the training set.
    pub samples: usize,
    /// The training set's [fingerprint](crate::data::Dataset::fingerprint).
    pub data: u32,
    /// Samples in a batch of one rank.
    pub batch_size: usize,
}

/// A good snapshot, in memory.
#[derive(Debug)]
pub struct Snapshot {
    /// Its description.
    pub meta: Meta,
    /// The model's variables, by name.
    pub model: BTreeMap<String, Tensor>,
    /// The optimizer's tensors, as [`State::tensors`](crate::optim::State::tensors) names them.
    pub optimizer: Vec<(String, Tensor)>,
    /// The program's own state, as the JSON text of [`Snapshots::save_with`](super::Snapshots::save_with); `None` in a snapshot
    /// of [`Snapshots::save`](super::Snapshots::save).
    pub extra: Option<String>,
}

impl Snapshot {
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, BadSnapshot> {
        let meta = check(bytes)?;
        let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(not_ours)?;
        let extra = metadata.metadata().as_ref().and_then(|texts| texts.get(STATE_KEY).cloned());
        let file = SafeTensors::deserialize(bytes).map_err(not_ours)?;
        let (mut model, mut optimizer) = (BTreeMap::new(), Vec::new());
        for (name, view) in file.tensors() {
            let tensor = tensor(view.dtype(), view.shape(), view.data())
                .ok_or_else(|| BadSnapshot::NotOurs(format!("{name} has the dtype {:?}", view.dtype())))?;
            match name.split_once('.') {
                Some(("model", name)) => drop(model.insert(name.to_owned(), tensor)),
                Some(("optimizer", name)) => optimizer.push((name.to_owned(), tensor)),
                _ => return Err(BadSnapshot::NotOurs(format!("{name} is neither of a model nor of an optimizer"))),
            }
        }
        Ok(Snapshot { meta, model, optimizer, extra })
    }
}

/// The file's bytes without the checksum, which [`seal`] adds. Copies the tensors now, one after the other.
pub(super) fn encode(
    meta: &Meta,
    extra: Option<&str>,
    tensors: Vec<(String, Tensor)>,
) -> Result<Vec<u8>, SnapshotError> {
    let infos = tensors.iter().map(|(name, tensor)| Ok((name.clone(), info(name, tensor)?)));
    let mut infos: Vec<(String, TensorInfo)> = infos.collect::<Result<_, SnapshotError>>()?;
    let end = infos.iter_mut().fold(0, |at, (_, info)| {
        info.data_offsets = (at, at + info.data_offsets.1);
        info.data_offsets.1
    });
    let mut bytes = header(meta, extra, &infos);
    bytes.reserve_exact(end);
    for (name, tensor) in tensors {
        append(&mut bytes, &tensor).map_err(|source| SnapshotError::Tensor { name, source })?;
    }
    Ok(bytes)
}

/// Inserts the checksum of `bytes`.
pub(super) fn seal(bytes: &mut [u8]) {
    let checksum = crc32fast::hash(bytes);
    if let Some(at) = checksum_place(bytes) {
        bytes[at..at + UNSEALED.len()].copy_from_slice(format!("{checksum:08x}").as_bytes());
    }
}

/// All checks that need no tensors: complete, undamaged, written by this module, and with this schema.
pub(super) fn check(bytes: &[u8]) -> Result<Meta, BadSnapshot> {
    let has = bytes.len() as u64;
    let header = header_length(bytes, has)?;
    check_ends(&bytes[LENGTH..LENGTH + header], has)?;
    let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(not_ours)?;
    check_sum(bytes)?;
    let none = HashMap::new();
    let texts = metadata.metadata().as_ref().unwrap_or(&none);
    let text = |key: &str| texts.get(key).ok_or_else(|| BadSnapshot::NotOurs(format!("no {key} in its metadata")));
    let schema = text(SCHEMA_KEY)?;
    if *schema != SCHEMA.to_string() {
        return Err(BadSnapshot::Schema { found: schema.clone(), here: SCHEMA });
    }
    serde_json::from_str(text(META_KEY)?).map_err(|error| BadSnapshot::NotOurs(format!("{META_KEY}: {error}")))
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

fn check_sum(bytes: &[u8]) -> Result<(), BadSnapshot> {
    let place =
        checksum_place(bytes).ok_or_else(|| BadSnapshot::NotOurs(format!("no {CHECKSUM_KEY} in its metadata")))?;
    let end = place + UNSEALED.len();
    let mut hasher = crc32fast::Hasher::new();
    [&bytes[..place], UNSEALED.as_bytes(), &bytes[end..]].into_iter().for_each(|part| hasher.update(part));
    let found = format!("{:08x}", hasher.finalize());
    let written = String::from_utf8_lossy(&bytes[place..end]).into_owned();
    if found == written { Ok(()) } else { Err(BadSnapshot::Damaged { found, written }) }
}

/// The position of the checksum's digits in the header. Inside a JSON string the quotes would be escaped.
fn checksum_place(bytes: &[u8]) -> Option<usize> {
    let length = u64::from_le_bytes(*bytes.first_chunk::<LENGTH>()?);
    let header = bytes.get(LENGTH..LENGTH.checked_add(usize::try_from(length).ok()?)?)?;
    let label = format!("\"{CHECKSUM_KEY}\":\"");
    let at = header.windows(label.len()).position(|part| part == label.as_bytes())? + label.len();
    header.get(at..at + UNSEALED.len()).map(|_| LENGTH + at)
}

fn not_ours(error: impl std::fmt::Display) -> BadSnapshot {
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

/// A tensor's bytes on the CPU, in the form that safetensors' own writer expects.
pub(crate) struct View {
    dtype: Dtype,
    shape: Vec<usize>,
    data: Vec<u8>,
}

impl View {
    /// Copies the tensor, which the file will store under `name`.
    ///
    /// # Errors
    /// The format does not support the kind of tensor, or it cannot be copied.
    pub(crate) fn new(name: &str, tensor: &Tensor) -> Result<Self, SnapshotError> {
        let TensorInfo { dtype, shape, .. } = info(name, tensor)?;
        let mut data = Vec::new();
        append(&mut data, tensor).map_err(|source| SnapshotError::Tensor { name: name.to_owned(), source })?;
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
fn info(name: &str, tensor: &Tensor) -> Result<TensorInfo, SnapshotError> {
    let kind = tensor.kind();
    let dtype = dtype(kind).ok_or_else(|| SnapshotError::Kind { name: name.to_owned(), kind })?;
    let data_offsets = (0, tensor.numel() * kind.elt_size_in_bytes());
    Ok(TensorInfo { dtype, shape: shape(tensor), data_offsets })
}

/// Dimensions are never negative.
pub(super) fn shape(tensor: &Tensor) -> Vec<usize> {
    tensor.size().into_iter().map(|size| size as usize).collect()
}

fn append(bytes: &mut Vec<u8>, tensor: &Tensor) -> Result<(), tch::TchError> {
    let start = bytes.len();
    bytes.resize(start + tensor.numel() * tensor.kind().elt_size_in_bytes(), 0);
    tensor.detach().f_copy_data_u8(&mut bytes[start..], tensor.numel())
}

/// The tensor of these bytes, if libtorch has the dtype.
pub(crate) fn tensor(dtype: Dtype, shape: &[usize], data: &[u8]) -> Option<Tensor> {
    let size: Vec<i64> = shape.iter().map(|&size| size as i64).collect();
    let kind = KINDS.iter().find(|(_, known)| *known == dtype)?.0;
    Tensor::f_from_data_size(data, &size, kind).ok()
}

/// safetensors' name of a kind of tensor, if it has one.
pub(super) fn dtype(kind: Kind) -> Option<Dtype> {
    KINDS.iter().find(|(known, _)| *known == kind).map(|(_, dtype)| *dtype)
}

const KINDS: [(Kind, Dtype); 10] = [
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tch::Device;
    use tch::nn::{self, VarStore};

    use super::*;
    use crate::optim::{Adam, AdamOptions, Optimizer, State, named_parameters};

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
        }
    }

    fn sealed(meta: &Meta, tensors: Vec<(String, Tensor)>) -> Vec<u8> {
        let mut bytes = encode(meta, None, tensors).unwrap();
        seal(&mut bytes);
        bytes
    }

    fn small() -> Vec<u8> {
        let tensors = vec![("model.w".to_owned(), Tensor::from_slice(&[1.5f32, -0.0]))];
        sealed(&meta(StateMeta { groups: Vec::new() }), tensors)
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
        let copies = all.iter().map(|(name, tensor)| (name.clone(), tensor.shallow_clone())).collect();
        let back = Snapshot::decode(&sealed(&meta(StateMeta { groups: Vec::new() }), copies)).unwrap();
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
        let state = one.state_dict();
        let described = meta(state.meta().clone());
        let tensors = state.tensors().into_iter().map(|(name, tensor)| (format!("optimizer.{name}"), tensor)).collect();
        let back = Snapshot::decode(&sealed(&described, tensors)).unwrap();
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
        let mut bytes = encode(&meta(StateMeta { groups: vec![group] }), extra, tensors).unwrap();
        seal(&mut bytes);
        bytes
    }

    #[test]
    fn writes_the_same_bytes_as_before() {
        let golden = include_bytes!("../../golden/snapshot.safetensors");
        let here = written(None);
        assert_eq!(String::from_utf8_lossy(&here), String::from_utf8_lossy(golden));
        assert!(here == golden);
        assert_eq!(Snapshot::decode(golden).unwrap().extra, None);
    }

    #[test]
    fn writes_and_reads_the_runs_own_state_within_the_checksum() {
        let golden = include_bytes!("../../golden/snapshot_state.safetensors");
        let state = serde_json::json!({"best": 0.1, "name": "é \"lockstep.crc32\":\"00000000\""}).to_string();
        let here = written(Some(&state));
        assert_eq!(String::from_utf8_lossy(&here), String::from_utf8_lossy(golden));
        assert!(here == golden);
        assert_eq!(Snapshot::decode(golden).unwrap().extra.as_ref(), Some(&state));
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
        let place = checksum_place(&bytes).unwrap();
        bytes[place..place + 8].copy_from_slice(UNSEALED.as_bytes());
        seal(&mut bytes);
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
        let error =
            encode(&meta(StateMeta { groups: Vec::new() }), None, vec![("model.z".into(), complex)]).unwrap_err();
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
