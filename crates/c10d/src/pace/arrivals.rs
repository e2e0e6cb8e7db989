//! For whom a rank waits in the collectives of a group that shares memory.

use std::ptr::NonNull;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::WorldSize;
use crate::ffi::{self, ArrivalsHandle, GroupHandle};

/// A rank's waits for the others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Waits {
    /// Seconds that it has waited for each rank; empty where nobody knows.
    #[serde(default)]
    pub(crate) seconds: Vec<f64>,
    /// The rank that holds up the wait under way, and how many seconds that has taken.
    #[serde(default)]
    pub(crate) now: Option<(usize, f64)>,
}

impl Waits {
    /// The waits since `earlier`.
    pub(super) fn since(&self, earlier: &Self) -> Self {
        let known = self.seconds.len() == earlier.seconds.len();
        let pairs = self.seconds.iter().zip(&earlier.seconds).filter(|_| known);
        Waits { seconds: pairs.map(|(now, then)| now - then).collect(), now: self.now }
    }
}

/// Reads a group's waits, from any thread and also when the group is gone.
#[derive(Debug)]
pub(crate) struct Arrivals {
    handle: NonNull<ArrivalsHandle>,
    world: WorldSize,
}

// SAFETY: the handle only has a weak reference to counters that are atomic.
unsafe impl Send for Arrivals {}
// SAFETY: as above.
unsafe impl Sync for Arrivals {}

impl Arrivals {
    /// `None` unless the group's ranks share memory.
    ///
    /// # Safety
    /// The group of `world` ranks must be alive.
    pub(crate) unsafe fn of(group: *const GroupHandle, world: WorldSize) -> Option<Self> {
        // SAFETY: the caller keeps the group alive for the call; the handle has references of its own.
        let handle = NonNull::new(unsafe { ffi::lc_group_arrivals(group) })?;
        Some(Arrivals { handle, world })
    }

    /// `None` if the group is gone.
    pub(crate) fn read(&self) -> Option<Waits> {
        let (mut seconds, mut rank, mut time) = (vec![0.0; self.world.get()], -1, 0.0);
        let (list, n) = (seconds.as_mut_ptr(), seconds.len());
        // SAFETY: the handle is alive; `n` numbers and two more may be written.
        let read = unsafe { ffi::lc_arrivals_read(self.handle.as_ptr(), list, n, &mut rank, &mut time) };
        read.then(|| Waits { seconds, now: usize::try_from(rank).ok().map(|rank| (rank, time)) })
    }

    /// The time that the rank has waited for each rank.
    pub(crate) fn waited(&self) -> Option<Vec<Duration>> {
        let waits = self.read()?;
        Some(waits.seconds.into_iter().map(|seconds| Duration::from_secs_f64(seconds.max(0.0))).collect())
    }
}

impl Drop for Arrivals {
    fn drop(&mut self) {
        // SAFETY: the handle came from the shim and is freed once.
        unsafe { ffi::lc_arrivals_free(self.handle.as_ptr()) };
    }
}
