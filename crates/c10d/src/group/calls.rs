//! What is noted of a group's calls: how many there were, which, and what the rank's report says of them.

use std::ops::Sub;
use std::time::Duration;

use lockstep_contract::desync_report::Call;

use super::{Inner, ProcessGroup};
use crate::error::{Error, ErrorKind};
use crate::pace::Arrivals;
use crate::reporter::{Entry, Kind, Reporter};
use crate::{Rank, WorldSize, ffi};

/// A number of operations and the bytes of the tensors that a rank has passed to them. An all-reduce of S bytes counts S, however
/// its algorithm moves them; sends count, receives do not, nor does what the ranks exchange to compare calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Operations.
    pub calls: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Sub for Traffic {
    type Output = Self;

    /// What was passed since `earlier`.
    fn sub(self, earlier: Self) -> Self {
        Traffic { calls: self.calls - earlier.calls, bytes: self.bytes - earlier.bytes }
    }
}

/// A call of a group's operation, as [`ProcessGroup::called`] returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Called {
    /// The operation, with its shapes and the peer of a message, and its group.
    pub call: Call,
    /// The ranks of the job in the group.
    pub members: Vec<Rank>,
    /// True if the rank has waited for its end.
    pub waited: bool,
    /// How many earlier calls' ends the rank had waited for when it made this one.
    pub waited_before: usize,
}

impl ProcessGroup {
    /// What this rank has passed to the group's operations so far, whoever called them: the training loop, a
    /// [`Reducer`](crate::Reducer) or a layer. `None` with NCCL, whose calls nothing counts; with two other backends, only what went
    /// through [`backend`](Self::backend).
    pub fn traffic(&self) -> Option<Traffic> {
        let mut traffic = Traffic::default();
        // SAFETY: the group is alive, and both numbers are written before the call returns.
        let is_counted = unsafe { ffi::lc_group_traffic(self.as_ptr(), &mut traffic.calls, &mut traffic.bytes) };
        is_counted.then_some(traffic)
    }

    /// Records this rank's calls in all groups of the job from now on, and forgets earlier ones. A message that is received then has NaN
    /// in its floating-point memory from the call on until it arrives, which shows who reads it before.
    pub fn record_calls(&self) {
        if let Some(reporter) = &self.inner.job.reporter {
            reporter.record_calls();
        }
    }

    /// Returns true if calls are recorded.
    pub(crate) fn is_recording(&self) -> bool {
        self.inner.job.reporter.as_ref().is_some_and(Reporter::is_recording)
    }

    /// The calls since [`record_calls`](Self::record_calls). A pass of a [`Reducer`](crate::Reducer) is one call, whatever it
    /// exchanges. Without desync reports there are none.
    pub fn called(&self) -> Vec<Called> {
        self.inner.job.reporter.as_ref().map(Reporter::called).unwrap_or_default()
    }

    /// How long this rank has waited for each rank in the group's collectives. `None` unless the ranks share memory, where each
    /// sees when the others arrive. Over several hosts it sees those of its own: the others have 0.
    pub fn waited_for(&self) -> Option<Vec<Duration>> {
        // SAFETY: the group is alive as long as self.
        unsafe { Arrivals::of(self.as_ptr(), self.size()) }?.waited()
    }

    /// The time since the last operation was called; `None` with NCCL.
    pub(crate) fn since_last_call(&self) -> Option<Duration> {
        // SAFETY: the group is alive as long as self.
        let nanoseconds = unsafe { ffi::lc_group_since_last_call(self.as_ptr()) };
        u64::try_from(nanoseconds).ok().map(Duration::from_nanos)
    }
}

impl Inner {
    /// `peer` is a message's, by its rank in this group.
    pub(crate) fn enter(&self, operation: &str, kind: Kind, peer: Option<Rank>) -> Option<Entry> {
        let peer = peer.and_then(|peer| self.members.get(peer.get()).copied());
        self.job.reporter.as_ref().map(|reporter| reporter.enter(&self.name, &self.members, operation, kind, peer))
    }

    pub(crate) fn wait(&self, entry: Entry) {
        if let Some(reporter) = &self.job.reporter {
            reporter.wait(entry);
        }
    }

    pub(crate) fn leave(&self, entry: Entry) {
        if let Some(reporter) = &self.job.reporter {
            reporter.leave(entry);
        }
    }

    /// Adds the reports of other ranks that may be involved in the failure: the peer of a message, and whom that waits for in turn;
    /// otherwise all.
    pub(crate) fn explain(&self, error: Error, entry: Entry) -> Error {
        match &self.job.reporter {
            Some(reporter) if error.kind() == ErrorKind::BadArgument || self.size == WorldSize::ONE => {
                reporter.leave(entry);
                error
            }
            Some(reporter) => {
                let why = format!("{:?}", error.kind());
                error.with_desync_report(reporter.report(entry, &why, &self.name, &self.members))
            }
            None => error,
        }
    }
}
