//! Giving a group up: what waits in it ends, on this rank and on the others.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::{Inner, ProcessGroup};
use crate::error::{Error, Result};
use crate::ffi;

impl ProcessGroup {
    /// Ends all operations of the group, here and on its other ranks, and leaves it unusable; PyTorch's
    /// `_abort_process_group`.
    ///
    /// Operations of this rank, those in progress and later ones, fail with [`ErrorKind::Aborted`](crate::ErrorKind::Aborted).
    /// Those of the other ranks fail with [`ErrorKind::PeerGone`](crate::ErrorKind::PeerGone), and the error names this rank. The
    /// tensors of an operation that was in progress are lost.
    ///
    /// # Errors
    /// The backend cannot abort; the group is then unusable on this rank only.
    pub fn abort(&self) -> Result<()> {
        self.inner.abort()
    }

    /// For a thread that watches this one, which may be in a wait.
    pub fn aborter(&self) -> Aborter {
        Aborter(Arc::downgrade(&self.inner))
    }
}

/// Aborts a group from any thread; it does not keep the group alive.
#[derive(Clone, Debug)]
pub struct Aborter(Weak<Inner>);

impl Aborter {
    /// As [`ProcessGroup::abort`]; nothing if the group is gone.
    ///
    /// # Errors
    /// As there.
    pub fn abort(&self) -> Result<()> {
        self.0.upgrade().map_or(Ok(()), |group| group.abort())
    }
}

impl Inner {
    fn abort(&self) -> Result<()> {
        if self.aborted.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        // Before the connections close: ranks that see them closed look for it.
        if let Some(reporter) = &self.job.reporter {
            reporter.abort_group(&self.name);
        }
        self.lifetime().end_after_abort(self.backends);
        // SAFETY: the group is alive as long as self, and the call may come from any thread.
        let aborted = unsafe { ffi::lc_group_abort(self.handle.group.as_ptr()) };
        aborted.check().map_err(|exception| Error::new("abort a process group", exception).at_rank(self.rank))
    }
}
