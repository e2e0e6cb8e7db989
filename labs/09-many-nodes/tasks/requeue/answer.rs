//! Task 6: requeue after a lost node.
//!
//! A node is lost, and the scheduler starts the job again, perhaps on other nodes. Each node finds what is on its disk: on a shared disk
//! all parts of all snapshots, on a local disk only those that its ranks have written, and on a new node nothing.

use anyhow::{Result, bail};
use serde::Deserialize;

/// A part of a snapshot, as a node finds it on its disk. A snapshot is sharded: each rank has written its own part.
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

/// Decides where training continues: `disks[n]` is what node n finds. Returns the epoch and the step of the newest complete snapshot: the
/// nodes together have all its parts, each of them whole. Returns `None`, for a start at the beginning, if all disks are empty. Jobs of
/// different numbers of ranks can have saved the same position: two snapshots, whose parts do not belong together.
///
/// # Errors
/// When there are parts, but no complete snapshot: the disk of a lost node has the others. A start at the beginning would lose
/// what a repaired node could bring back.
pub fn requeue(disks: &[Vec<Part>]) -> Result<Option<(u64, u64)>> {
    // <answer>
    //~ // A shared disk shows the same part on several nodes. `positions.sort(); positions.dedup();`
    //~ todo!("decide where training continues")
    let all: Vec<&Part> = disks.iter().flatten().collect();
    let has = |part: Part| all.contains(&&part);
    let complete = |one: &&&Part| (0..one.of).all(|part| has(Part { part, whole: true, ..(**one).clone() }));
    let newest = all.iter().filter(complete).map(|one| (one.epoch, one.step)).max();
    if newest.is_none() && !all.is_empty() {
        bail!(
            "no snapshot is complete: bring back the node whose disk has the other parts, or name another folder to start over"
        );
    }
    Ok(newest)
    // </answer>
}
