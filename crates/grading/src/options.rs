//! Options of the grader.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::runner::Bounds;

/// The default deadline of a call. Time in which the ranks or the grader wait for a core does not count. Right answers take
/// about a second.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// Options of the grader.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The seed of the inputs.
    pub seed: u64,
    /// How long a call may take.
    pub deadline: Duration,
    /// What its ranks may use.
    pub bounds: Bounds,
    /// If true, ranks can write only to their private folder, where the kernel supports this.
    pub confined: bool,
}

impl Options {
    /// Default options, with the inputs drawn from `seed` or, without one, from the time of day.
    pub fn seeded(seed: Option<u64>) -> Self {
        let today = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().subsec_nanos() % 100_000;
        Options {
            seed: seed.unwrap_or_else(|| today().into()),
            deadline: DEADLINE,
            bounds: Bounds::default(),
            confined: false,
        }
    }
}
