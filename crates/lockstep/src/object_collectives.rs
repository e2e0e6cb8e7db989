//! Broadcasts and gathers plain values, so that all ranks act on what one rank found out, for example about files that only its
//! machine has.
//!
//! If each rank decided by itself, two could decide differently, and the job would hang in the next collective. Leaves out the
//! decisions themselves.

use c10d::{ProcessGroup, Rank};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tch::{Device, Kind, TchError, Tensor};

/// Maximum length of one message, in bytes.
const CHUNK: usize = 64 * 1024 * 1024;

/// Maximum length of a value, in bytes: 1 GiB. A longer one is refused before memory is taken for it.
const LONGEST: usize = 1 << 30;

/// A value from another rank did not arrive.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// The broadcast failed.
    #[error(transparent)]
    Group(#[from] c10d::Error),
    /// libtorch could not copy the bytes out of their tensor.
    #[error("failed to copy the bytes that another rank sent")]
    Copy(#[from] TchError),
    /// A rank says that its value has this length.
    #[error("another rank announced {0} bytes, and a value may have {LONGEST}: do all ranks run the same program?")]
    Length(i64),
    /// The bytes are not the expected value: the ranks run different programs.
    #[error("failed to read what another rank sent; do all ranks run the same program?")]
    Garbled(#[from] serde_json::Error),
}

/// Returns rank 0's value on every rank; the others pass `None`. A collective.
///
/// # Panics
/// Panics when the value cannot be written as JSON, or when rank 0 passes `None`.
pub fn broadcast_object<T: Serialize + DeserializeOwned>(
    group: &ProcessGroup,
    mine: Option<&T>,
) -> Result<T, ObjectError> {
    broadcast_object_from(group, Rank::ZERO, mine)
}

/// Returns the value of rank `root` on every rank; the others pass `None`. A collective; PyTorch's `broadcast_object_list`.
///
/// Errors: a value longer than 1 GiB.
///
/// # Panics
/// Panics when the value cannot be written as JSON, or when `root` passes `None`.
pub fn broadcast_object_from<T: Serialize + DeserializeOwned>(
    group: &ProcessGroup,
    root: Rank,
    mine: Option<&T>,
) -> Result<T, ObjectError> {
    assert!(mine.is_some() || group.rank() != root, "rank {root} passes the value");
    let text = mine.map(to_json);
    let mut length = Tensor::from(text.as_ref().map_or(0, |text| text.len() as i64)).to_device(group.device());
    group.broadcast(&mut length, root)?;
    let length = checked(length.int64_value(&[]))?;
    let text = broadcast_bytes_from(group, root, text.unwrap_or_else(|| vec![0; length]))?;
    Ok(serde_json::from_slice(&text)?)
}

/// Returns the bytes of rank `root` on every rank; the others pass a buffer of the same length. A collective.
pub(crate) fn broadcast_bytes_from(
    group: &ProcessGroup,
    root: Rank,
    mut mine: Vec<u8>,
) -> Result<Vec<u8>, ObjectError> {
    if group.size().get() == 1 {
        return Ok(mine);
    }
    for chunk in mine.chunks_mut(CHUNK) {
        let mut tensor = Tensor::from_slice(chunk).to_device(group.device());
        group.broadcast(&mut tensor, root)?;
        tensor.f_to_kind(Kind::Uint8)?.f_copy_data_u8(chunk, chunk.len())?;
    }
    Ok(mine)
}

/// Fills `mine`, a contiguous one-dimensional tensor of bytes on the CPU, with that of rank `root`. A collective.
pub(crate) fn broadcast_tensor_of_bytes_from(
    group: &ProcessGroup,
    root: Rank,
    mine: &mut Tensor,
) -> Result<(), ObjectError> {
    let length = mine.numel();
    let chunks = if group.size().get() == 1 { 0 } else { length.div_ceil(CHUNK) };
    for from in (0..chunks).map(|chunk| chunk * CHUNK) {
        let mut chunk = mine.f_narrow(0, from as i64, CHUNK.min(length - from) as i64)?;
        let mut sent = chunk.f_to_device(group.device())?; // the chunk itself if that is the CPU
        group.broadcast(&mut sent, root)?;
        if group.device() != Device::Cpu {
            chunk.f_copy_(&sent)?;
        }
    }
    Ok(())
}

/// Returns every rank's value, ordered by rank, on every rank. A collective for short values: each is padded to the longest.
///
/// # Panics
/// Panics when the value cannot be written as JSON.
pub fn all_gather_object<T: Serialize + DeserializeOwned>(
    group: &ProcessGroup,
    mine: &T,
) -> Result<Vec<T>, ObjectError> {
    let mut text = to_json(mine);
    let size = group.size().get();
    let lengths = all_gather_length(group, text.len())?;
    let longest = lengths.iter().copied().max().unwrap_or(0);
    text.resize(longest, b' ');
    let mut all = Tensor::zeros([(size * longest) as i64], (Kind::Uint8, group.device()));
    group.all_gather_into_tensor(&mut all, &Tensor::from_slice(&text).to_device(group.device()))?;
    let mut texts = vec![0; size * longest];
    all.f_copy_data_u8(&mut texts, size * longest)?;
    let each = texts.chunks(longest.max(1)).zip(lengths);
    each.map(|(text, length)| Ok(serde_json::from_slice(&text[..length.min(text.len())])?)).collect()
}

/// The lengths of all ranks' texts, by rank.
fn all_gather_length(group: &ProcessGroup, mine: usize) -> Result<Vec<usize>, ObjectError> {
    let mut all = Tensor::zeros([group.size().get() as i64], (Kind::Int64, group.device()));
    group.all_gather_into_tensor(&mut all, &Tensor::from_slice(&[mine as i64]).to_device(group.device()))?;
    Vec::<i64>::try_from(all)?.into_iter().map(checked).collect()
}

/// A length that another rank sent.
fn checked(length: i64) -> Result<usize, ObjectError> {
    usize::try_from(length).ok().filter(|length| *length <= LONGEST).ok_or(ObjectError::Length(length))
}

fn to_json<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("the value can be written as JSON")
}
