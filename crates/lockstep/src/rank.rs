//! The three numbers that tutorials confuse, as three types.
//!
//! Rank and world size come from `c10d`; the position on a node is defined here, since c10d has no nodes. [`crate::env`] reads
//! them from the environment.

use std::fmt;

use serde::{Deserialize, Serialize};

pub use c10d::{Rank, WorldSize};

/// A process's position among the processes of *its own node*: it selects the device, never the rank in the group.
///
/// On one node it equals the rank, which is why `init_process_group(rank=LOCAL_RANK)` seems to work until a second node joins.
/// As a separate type it does not compile there:
///
/// ```compile_fail
/// fn join(rank: lockstep::Rank) {}
/// join(lockstep::LocalRank::new(0));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LocalRank(usize);

impl LocalRank {
    /// Wraps a position.
    pub const fn new(position: usize) -> Self {
        LocalRank(position)
    }

    /// The position as a plain number: the index of the device.
    pub const fn get(self) -> usize {
        self.0
    }
}

impl fmt::Display for LocalRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
