//! What the nodes of a job find on their disks when it starts. You do not change this file.

use serde::Deserialize;

/// A part of a snapshot. A snapshot is sharded: each rank has written its own part.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Part {
    /// The epoch in which training would continue.
    pub epoch: u64,
    /// The step in it.
    pub step: u64,
    /// Which part it is, from 0.
    pub part: usize,
    /// How many parts the snapshot has.
    pub of: usize,
    /// False if the file is torn or damaged.
    pub whole: bool,
}
