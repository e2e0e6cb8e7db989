//! Separate types for ranks and world sizes, so a count cannot be passed as a position.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A process's position in a process group, from 0 to the world size minus one.
///
/// In a subgroup this is the position *within that group*, as c10d counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rank(usize);

impl Rank {
    /// The rank that by convention prints, saves and hosts.
    pub const ZERO: Rank = Rank(0);

    /// Creates a rank from a position.
    pub const fn new(position: usize) -> Self {
        Rank(position)
    }

    /// The position as a plain number.
    pub const fn get(self) -> usize {
        self.0
    }

    /// Returns true for rank 0.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The number of processes in a group; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct WorldSize(usize);

impl WorldSize {
    /// The size of a group with a single process.
    pub const ONE: WorldSize = WorldSize(1);

    /// Creates a size from a count; `None` for 0.
    pub const fn new(count: usize) -> Option<Self> {
        if count == 0 { None } else { Some(WorldSize(count)) }
    }

    /// The count as a plain number.
    pub const fn get(self) -> usize {
        self.0
    }

    /// Every rank of the group, in order.
    pub fn ranks(self) -> impl Iterator<Item = Rank> {
        (0..self.0).map(Rank)
    }

    /// Returns true if `rank` is a member.
    pub const fn contains(self, rank: Rank) -> bool {
        rank.0 < self.0
    }
}

impl fmt::Display for WorldSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
