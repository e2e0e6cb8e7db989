//! Where a run stands: an epoch, and a step in it.

use serde::{Deserialize, Serialize};

/// The next step that a run takes. It is all that a snapshot needs of the loader, since the order of an epoch
/// is a pure function of its number.
///
/// A step is a batch of one rank. A position therefore holds for the batch size and world size under which it was
/// taken; with others it names other samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Position {
    /// The epoch, from 0.
    pub epoch: u64,
    /// The step in it, from 0, always less than the steps of an epoch.
    pub step: usize,
}

impl Position {
    /// The position after `global_step` steps over all epochs, where each has `steps`; `None` if that is 0.
    ///
    /// ```no_run
    /// # use lockstep::loader::Position;
    /// assert_eq!(Position::after(23, 10), Some(Position { epoch: 2, step: 3 }));
    /// assert_eq!(Position::after(20, 10), Some(Position { epoch: 2, step: 0 }));
    /// ```
    pub fn after(global_step: u64, steps: usize) -> Option<Self> {
        let epoch = global_step.checked_div(steps as u64)?;
        Some(Position { epoch, step: (global_step % steps as u64) as usize })
    }

    /// How many steps were taken before this one, over all epochs of `steps` each.
    pub fn global_step(self, steps: usize) -> u64 {
        self.epoch * steps as u64 + self.step as u64
    }
}
