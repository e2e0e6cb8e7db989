//! All ranks agree on what to resume from: rank 0 decides, and its decision and the snapshot itself go to everyone.

use c10d::{ProcessGroup, Rank};
use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use super::error::SnapshotError;

/// The longest message, in bytes.
const CHUNK: usize = 64 * 1024 * 1024;

/// What rank 0 decided.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Decision {
    /// There is nothing to resume from.
    Anew,
    /// All resume from the file that is shown so, of so many bytes, which follow.
    Resume(String, usize),
    /// Nobody trains.
    Refuse(String),
}

/// Rank 0's decision, on every rank. The other ranks pass `None`.
pub(super) fn decision(group: &ProcessGroup, mine: Option<&Decision>) -> Result<Decision, SnapshotError> {
    // Texts and a number: JSON has them all.
    let text = mine.map(|mine| serde_json::to_vec(mine).expect("a decision is JSON"));
    let mut length = Tensor::from(text.as_ref().map_or(0, |text| text.len() as i64)).to_device(group.device());
    group.broadcast(&mut length, Rank::ZERO)?;
    let length = usize::try_from(length.int64_value(&[])).unwrap_or(0);
    let text = bytes(group, text.unwrap_or_else(|| vec![0; length]))?;
    Ok(serde_json::from_slice(&text)
        .unwrap_or_else(|error| Decision::Refuse(format!("its words are garbled: {error}"))))
}

/// Rank 0's bytes, on every rank; the others pass as many of any value.
pub(super) fn bytes(group: &ProcessGroup, mut mine: Vec<u8>) -> Result<Vec<u8>, SnapshotError> {
    if group.size().get() == 1 {
        return Ok(mine);
    }
    for chunk in mine.chunks_mut(CHUNK) {
        let mut tensor = Tensor::from_slice(chunk).to_device(group.device());
        group.broadcast(&mut tensor, Rank::ZERO)?;
        let copied = tensor.f_to_kind(Kind::Uint8).and_then(|tensor| tensor.f_copy_data_u8(chunk, chunk.len()));
        copied.map_err(|source| SnapshotError::Tensor { name: "of the snapshot's bytes".into(), source })?;
    }
    Ok(mine)
}
