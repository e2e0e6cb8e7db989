//! All ranks agree on what to resume from: rank 0 decides, and its decision and the snapshot itself go to everyone.

use c10d::ProcessGroup;
use serde::{Deserialize, Serialize};

use super::error::SnapshotError;
use crate::agree;

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
    Ok(agree::words(group, mine)?)
}

/// Rank 0's bytes, on every rank; the others pass as many of any value.
pub(super) fn bytes(group: &ProcessGroup, mine: Vec<u8>) -> Result<Vec<u8>, SnapshotError> {
    Ok(agree::bytes(group, mine)?)
}
