//! The header and the tensors of a snapshot's file. Passes over their bytes in pieces that stay in a core's cache, so that a byte that is
//! copied, summed and written comes from memory once, and neither writing nor reading needs the whole file in memory besides the
//! tensors.
//!
//! [`super::file`] interprets the header.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{self, Read};

use tch::{Device, Kind, TchError, Tensor};

use super::error::{BadSnapshot, SnapshotError};
use super::file::{self, Checksum, Header, LENGTH};
use super::meta::{Meta, Snapshot};
use super::source;
use super::tensor_view::kind;

/// The length of a piece in bytes: two of them fit into the second level of a core's cache.
const PIECE: usize = 1 << 18;

/// Whose memory the tensors of new contents are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Memory {
    /// That of the given ones, if they are on the CPU: training must wait while this exists.
    Shared,
    /// Their own.
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

    /// Reads a file of `has` bytes and compares its checksum. Nothing follows from a good one but that it is complete and undamaged.
    pub(super) fn read(file: &mut impl Read, has: u64) -> Result<Self, BadSnapshot> {
        let header = source::read_start(file, has)?;
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
