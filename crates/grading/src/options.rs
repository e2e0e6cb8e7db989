//! How answers are graded.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::stage::Bounds;

/// How long the ranks of a call may take if nothing else is said, the time left out in which others had the core. Right answers take
/// about a second.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// How answers are graded.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// What the inputs are drawn from.
    pub seed: u64,
    /// How long a call may take.
    pub deadline: Duration,
    /// How much its ranks may take.
    pub bounds: Bounds,
    /// Whether ranks can write to their private folder only, where the kernel can see to that.
    pub confined: bool,
}

impl Options {
    /// With inputs from `seed`, or from the time of day.
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
