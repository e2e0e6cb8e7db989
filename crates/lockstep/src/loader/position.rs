//! The point that a run has reached: an epoch, a step in it, and the number of samples taken.

use serde::{Deserialize, Serialize};

/// The next step of a run. A snapshot needs nothing else from the loader, since the order of an epoch is a pure function of its
/// number.
///
/// A step is a batch of one rank, so its number alone means nothing to a run with another batch size or world size. The number
/// of samples does: all ranks together have taken the first [`samples`](Self::samples) of the epoch's order, and the rest can
/// be distributed over any number of ranks ([`Sampler::indices_from`](crate::sampler::Sampler::indices_from)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Position {
    /// The epoch, from 0.
    pub epoch: u64,
    /// How many steps of the epoch every rank has done, under any world sizes.
    pub step: usize,
    /// How many samples of the epoch's order all ranks together have taken; always fewer than all.
    pub samples: usize,
}

impl Position {
    /// Before the first step of `epoch`.
    pub const fn start_of(epoch: u64) -> Self {
        Position { epoch, step: 0, samples: 0 }
    }

    /// Returns true if no step of the epoch is done.
    pub fn is_start(self) -> bool {
        self.step == 0 && self.samples == 0
    }

    /// Where the loop over epochs enters `epoch`: at this position if it is in that epoch, otherwise at its start.
    ///
    /// ```no_run
    /// # use lockstep::loader::Position;
    /// let resumed = Position { epoch: 2, step: 3, samples: 96 };
    /// assert_eq!(resumed.within(2), resumed);
    /// assert_eq!(resumed.within(3), Position::start_of(3));
    /// ```
    pub fn within(self, epoch: u64) -> Self {
        if self.epoch == epoch { self } else { Position::start_of(epoch) }
    }
}
