//! The three numbers that tutorials mix up, as three types.

pub use c10d::{Rank, WorldSize};

/// A process's position among the processes of *its own node*: it picks the device, never the rank in the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LocalRank(usize);

impl LocalRank {
    /// Wraps a position.
    pub const fn new(position: usize) -> Self {
        LocalRank(position)
    }

    /// The position as a plain number.
    pub const fn get(self) -> usize {
        self.0
    }
}
