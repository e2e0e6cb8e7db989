//! The header and the tensors of a snapshot's file. Their bytes are processed in pieces that stay in a core's cache: a byte that is
//! copied, summed and written comes from memory only once, and neither writing nor reading needs the whole file in memory in addition to
//! the tensors.
//!
//! [`super::file`] interprets the header.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::Path;

use tch::{Device, Kind, TchError, Tensor};

use super::error::{BadSnapshot, SnapshotError};
use super::file::{self, Checksum, Header, LENGTH, kind};
use super::meta::{Meta, Snapshot};

/// The length of a piece in bytes: two of them fit into the second level of a core's cache.
const PIECE: usize = 1 << 18;

/// Whose memory the tensors of new contents are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Memory {
    /// The memory of the given tensors, if they are on the CPU: training must wait while the contents exist.
    Shared,
    /// A copy.
    Copied,
}

/// A snapshot as its file has it.
pub(super) struct Contents {
    /// The length of the header, and the header.
    header: Vec<u8>,
    /// The bytes of each tensor, in the order of the file: one-dimensional, on the CPU.
    tensors: Vec<Tensor>,
}

impl Contents {
    /// A new snapshot of `tensors`, which have their names in the file.
    pub(super) fn new(
        meta: &Meta,
        extra: Option<&str>,
        tensors: &[(String, Tensor)],
        memory: Memory,
    ) -> Result<Self, SnapshotError> {
        let header = file::unsealed(meta, extra, tensors)?;
        let bytes = |(name, tensor): &(String, Tensor)| {
            bytes_of(tensor, memory).map_err(|source| SnapshotError::Tensor { name: name.clone(), source })
        };
        Ok(Contents { header, tensors: tensors.iter().map(bytes).collect::<Result<_, _>>()? })
    }

    /// Reads and checks the file at `path`.
    pub(super) fn of_file(path: &Path) -> Result<Self, BadSnapshot> {
        let mut file = file::open_regular(path)?;
        let has = file.metadata()?.len();
        Self::read(&mut file, has)
    }

    /// Reads a file of `has` bytes and compares its checksum. A matching checksum proves only that the file is complete and
    /// undamaged.
    pub(super) fn read(file: &mut impl Read, has: u64) -> Result<Self, BadSnapshot> {
        let header = file::read_start(file, has)?;
        let mut checksum = Checksum::of(&header)?;
        let mut read = header.len() as u64;
        let mut buffer = vec![0; PIECE];
        let contents = Self::to_receive(header)?;
        for piece in contents.tensors.iter().flat_map(pieces) {
            let mut piece = piece.map_err(io::Error::other)?;
            let bytes = &mut buffer[..piece.numel()];
            file.read_exact(bytes).map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => BadSnapshot::Torn { has: read, wants: has },
                _ => error.into(),
            })?;
            checksum.update(bytes);
            piece.f_copy_(&Tensor::from_slice(bytes)).map_err(io::Error::other)?;
            read += bytes.len() as u64;
        }
        checksum.check(&contents.header)?;
        Ok(contents)
    }

    /// Contents with this header, whose tensors are to be filled: until then their bytes are arbitrary.
    pub(super) fn to_receive(header: Vec<u8>) -> Result<Self, BadSnapshot> {
        let parsed = Header::parse(&header)?;
        let tensors = parsed.tensors().map(|(_, info)| {
            let (from, to) = info.data_offsets;
            Tensor::f_empty([(to - from) as i64], (Kind::Uint8, Device::Cpu)).map_err(|error| {
                let why = format!("{} bytes do not fit into memory: {error}", to - from);
                BadSnapshot::Unreadable(io::Error::new(io::ErrorKind::OutOfMemory, why))
            })
        });
        let tensors = tensors.collect::<Result<_, _>>()?;
        Ok(Contents { header, tensors })
    }

    /// The length of the header, and the header.
    pub(super) fn header(&self) -> &[u8] {
        &self.header
    }

    /// The bytes of each tensor, to be filled.
    pub(super) fn tensors_mut(&mut self) -> &mut [Tensor] {
        &mut self.tensors
    }

    /// The length of the file.
    pub(super) fn bytes(&self) -> u64 {
        (self.header.len() + self.tensors.iter().map(Tensor::numel).sum::<usize>()) as u64
    }

    /// Passes all bytes to `take`, a piece at a time; returns their checksum.
    pub(super) fn pieces(&self, mut take: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<Checksum> {
        let mut checksum = Checksum::of(&self.header).map_err(io::Error::other)?;
        take(&self.header)?;
        let mut buffer = vec![0; PIECE];
        for piece in self.tensors.iter().flat_map(pieces) {
            let piece = piece.map_err(io::Error::other)?;
            let bytes = &mut buffer[..piece.numel()];
            piece.f_copy_data_u8(bytes, bytes.len()).map_err(io::Error::other)?;
            checksum.update(bytes);
            take(bytes)?;
        }
        Ok(checksum)
    }

    /// Compares the checksum.
    pub(super) fn check(&self) -> Result<(), BadSnapshot> {
        self.pieces(|_| Ok(()))?.check(&self.header)
    }

    /// The description.
    pub(super) fn meta(&self) -> Result<Meta, BadSnapshot> {
        Header::parse(&self.header)?.meta()
    }

    /// The program's own state.
    pub(super) fn extra(&self) -> Result<Option<String>, BadSnapshot> {
        Ok(Header::parse(&self.header)?.extra())
    }

    /// The checksum that the header has.
    pub(super) fn checksum(&self) -> Option<String> {
        file::identity(self.header.get(LENGTH..).unwrap_or_default()).0
    }

    /// Writes the checksum to the header, as a file has it.
    pub(super) fn sealed(mut self) -> io::Result<Self> {
        let (place, digits) = self.pieces(|_| Ok(()))?.digits();
        self.header[place..place + digits.len()].copy_from_slice(digits.as_bytes());
        Ok(self)
    }

    /// The tensors with their names in the file; they share the memory of these.
    pub(super) fn named(&self) -> Result<Vec<(String, Tensor)>, BadSnapshot> {
        let header = Header::parse(&self.header)?;
        let named = header.tensors().zip(&self.tensors).map(|((name, info), bytes)| {
            let kind = kind(info.dtype);
            let kind = kind.ok_or_else(|| BadSnapshot::NotOurs(format!("{name} has the dtype {:?}", info.dtype)))?;
            let size: Vec<i64> = info.shape.iter().map(|&size| size as i64).collect();
            let tensor = bytes.f_view_dtype(kind).and_then(|flat| flat.f_view(&*size)).map_err(file::not_ours)?;
            Ok((name, tensor))
        });
        named.collect()
    }

    /// The snapshot, with tensors that share the memory of these.
    pub(super) fn snapshot(&self) -> Result<Snapshot, BadSnapshot> {
        let header = Header::parse(&self.header)?;
        let meta = header.meta()?;
        let (mut model, mut optimizer) = (BTreeMap::new(), Vec::new());
        for (name, tensor) in self.named()? {
            match name.split_once('.') {
                Some(("model", name)) => drop(model.insert(name.to_owned(), tensor)),
                Some(("optimizer", name)) => optimizer.push((name.to_owned(), tensor)),
                _ => return Err(BadSnapshot::NotOurs(format!("{name} is neither of a model nor of an optimizer"))),
            }
        }
        Ok(Snapshot { meta, model, optimizer, extra: header.extra() })
    }
}

/// Sorts tensors, which have their names in the file, as the file has them: wide elements first, so that each begins at a multiple of
/// its width.
pub(super) fn sort(tensors: &mut [(String, Tensor)]) {
    tensors.sort_by_cached_key(|(name, tensor)| (Reverse(tensor.kind().elt_size_in_bytes()), name.clone()));
}

/// The bytes of a tensor as a one-dimensional tensor on the CPU.
fn bytes_of(tensor: &Tensor, memory: Memory) -> Result<Tensor, TchError> {
    let here = tensor.detach().f_to_device(Device::Cpu)?.f_contiguous()?;
    let flat = here.f_view(-1)?.f_view_dtype(Kind::Uint8)?;
    if memory == Memory::Shared || here.data_ptr() != tensor.data_ptr() {
        return Ok(flat);
    }
    let mut own = flat.f_empty_like()?;
    own.f_copy_(&flat).map(|()| own)
}

/// The parts of a one-dimensional tensor of bytes, which share its memory.
fn pieces(bytes: &Tensor) -> impl Iterator<Item = Result<Tensor, TchError>> {
    let length = bytes.numel();
    (0..length).step_by(PIECE).map(move |from| bytes.f_narrow(0, from as i64, PIECE.min(length - from) as i64))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;
    use tch::nn::{self, VarStore};

    use super::super::file::KINDS;
    use super::super::meta::Run;
    use super::*;
    use crate::loader::Position;
    use crate::optim::{Adam, AdamOptions, Optimizer, State, StateMeta, named_parameters};

    fn meta(optimizer: StateMeta) -> Meta {
        let run = Run { seed: u64::MAX, samples: 50, data: 7, batch_size: 8 };
        let position = Position { epoch: 3, step: 2, samples: 16 };
        Meta { position, run, world_size: 2, threads: 1, optimizer, ..Meta::default() }
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

    /// The file that `golden/snapshot.py` writes.
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
        let (header, data) = bytes.split_at_mut(LENGTH + file::header_length(&small(), u64::MAX).unwrap());
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
