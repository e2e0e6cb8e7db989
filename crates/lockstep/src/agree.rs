//! Having all ranks act on what rank 0 found out: on files that only its machine may have, for one.
//!
//! A rank that decided by itself could decide otherwise, and the job would hang in the next collective. Leaves out what is decided.

use c10d::{ProcessGroup, Rank};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tch::{Kind, TchError, Tensor};

/// The longest message, in bytes.
const CHUNK: usize = 64 * 1024 * 1024;

/// Rank 0's words did not come.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgreeError {
    /// The broadcast failed.
    #[error(transparent)]
    Group(#[from] c10d::Error),
    /// libtorch could not copy them out of their tensor.
    #[error("failed to copy the bytes that rank 0 sent")]
    Copy(#[from] TchError),
    /// They are other words than were expected: the ranks run different programs.
    #[error("failed to read what rank 0 sent; do all ranks run the same program?")]
    Garbled(#[from] serde_json::Error),
}

/// Rank 0's value, on every rank; the others pass `None`. A collective.
///
/// # Panics
/// When the value cannot be written as JSON, or rank 0 has none.
pub(crate) fn words<T: Serialize + DeserializeOwned>(group: &ProcessGroup, mine: Option<&T>) -> Result<T, AgreeError> {
    assert!(mine.is_some() || !group.rank().is_zero(), "rank 0 has the word");
    let text = mine.map(|mine| serde_json::to_vec(mine).expect("what is agreed upon can be written as JSON"));
    let mut length = Tensor::from(text.as_ref().map_or(0, |text| text.len() as i64)).to_device(group.device());
    group.broadcast(&mut length, Rank::ZERO)?;
    let length = usize::try_from(length.int64_value(&[])).unwrap_or(0);
    let text = bytes(group, text.unwrap_or_else(|| vec![0; length]))?;
    Ok(serde_json::from_slice(&text)?)
}

/// Rank 0's bytes, on every rank; the others pass as many of any value. A collective.
pub(crate) fn bytes(group: &ProcessGroup, mut mine: Vec<u8>) -> Result<Vec<u8>, AgreeError> {
    if group.size().get() == 1 {
        return Ok(mine);
    }
    for chunk in mine.chunks_mut(CHUNK) {
        let mut tensor = Tensor::from_slice(chunk).to_device(group.device());
        group.broadcast(&mut tensor, Rank::ZERO)?;
        tensor.f_to_kind(Kind::Uint8)?.f_copy_data_u8(chunk, chunk.len())?;
    }
    Ok(mine)
}
