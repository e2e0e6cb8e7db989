//! For whom a rank waits in the collectives of a group that shares memory, on one host or on each of several.

use std::ptr::NonNull;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::WorldSize;
use crate::ffi::{self, ArrivalsHandle, GroupHandle};

/// For whom a rank waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Awaited {
    /// The rank that holds it up.
    Rank(usize),
    /// Some rank of another host.
    OtherHost,
}

/// `shm::kElsewhere`.
const ELSEWHERE: i32 = -2;

impl Awaited {
    fn of(number: i32) -> Option<Self> {
        if number == ELSEWHERE {
            return Some(Awaited::OtherHost);
        }
        usize::try_from(number).ok().map(Awaited::Rank)
    }
}

/// A rank's waits for the others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Waits {
    /// Seconds that it has waited for each rank, as far as it knows: for those of its own host. Empty where nobody knows.
    #[serde(default)]
    pub(crate) seconds: Vec<Option<f64>>,
    /// Who holds up the wait under way, and how many seconds that has taken.
    #[serde(default)]
    pub(crate) now: Option<(Awaited, f64)>,
}

impl Waits {
    /// The waits since `earlier`.
    pub(super) fn since(&self, earlier: &Self) -> Self {
        let known = self.seconds.len() == earlier.seconds.len();
        let pairs = self.seconds.iter().zip(&earlier.seconds).filter(|_| known);
        let seconds = pairs.map(|(now, then)| Some((*now)? - (*then)?)).collect();
        Waits { seconds, now: self.now }
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
    /// `None` unless the group's ranks share memory, or those of each host do.
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
        let known = |seconds: f64| Some(seconds).filter(|seconds| !seconds.is_nan());
        let seconds = seconds.into_iter().map(known).collect();
        read.then(|| Waits { seconds, now: Awaited::of(rank).map(|rank| (rank, time)) })
    }

    /// The time that the rank has waited for each rank; 0 where it is not known.
    pub(crate) fn waited(&self) -> Option<Vec<Duration>> {
        let waits = self.read()?;
        Some(waits.seconds.iter().map(|seconds| Duration::from_secs_f64(seconds.unwrap_or(0.0).max(0.0))).collect())
    }
}

impl Drop for Arrivals {
    fn drop(&mut self) {
        // SAFETY: the handle came from the shim and is freed once.
        unsafe { ffi::lc_arrivals_free(self.handle.as_ptr()) };
    }
}
