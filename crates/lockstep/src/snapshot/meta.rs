//! What a snapshot holds.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tch::Tensor;

use super::fence::Attempt;
use super::parts::Sharded;
use crate::loader::Position;
use crate::optim::StateMeta;

/// The version of the format. The checksum is independent of it: all versions have it in the same place.
pub const SCHEMA: u32 = 1;

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
    /// What this file is of a sharded snapshot; `None` if it has everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharded: Option<Sharded>,
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
