//! Process groups: what they are, and their timeouts.
//!
//! Below: joining one (`create.rs`) and subgroups, what is noted of calls (`calls.rs`), giving a group up (`abort.rs`) and freeing it
//! (`handle.rs`). Not here: a group's operations (`collectives.rs` and `p2p.rs`), its backend (`backend.rs`), and its options
//! (`options.rs`).

mod abort;
mod calls;
mod create;
mod handle;
mod subgroups;

pub use abort::Aborter;
pub use calls::{Called, Traffic};

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tch::Device;

use crate::error::{Error, Result};
use crate::ffi::{self, GroupHandle};
use crate::operation::Lifetime;
use crate::options::{DebugLevel, GroupOptions};
use crate::reporter::Reporter;
use crate::store::millis;
use crate::{Backend, BackendConfig, Rank, Store, WorldSize};
use handle::Handle;

/// This rank's handle to a set of processes that communicate.
///
/// All ranks must make the same calls in the same order. c10d requires one thread per group, so this type is `Send` but
/// not `Sync`.
#[derive(Debug)]
pub struct ProcessGroup {
    inner: Arc<Inner>,
    /// Of the calls inside [`ProcessGroup::with_timeout`]. It also makes the type not `Sync`.
    timeout: Cell<Option<Duration>>,
}

/// The part of a `ProcessGroup` that lives as long as its last operation.
#[derive(Debug)]
pub(crate) struct Inner {
    handle: Handle,
    name: String,
    rank: Rank,
    size: WorldSize,
    /// As the caller asked for it; subgroups ask for the same.
    asked: BackendConfig,
    backends: BackendConfig,
    why_backend: Option<String>,
    /// The members' ranks in the whole job, in group order.
    members: Vec<Rank>,
    job: Arc<Job>,
    options: GroupOptions,
    /// By [`ProcessGroup::set_timeout`].
    set_timeout: Mutex<Option<Duration>>,
    debug: DebugLevel,
    aborted: AtomicBool,
}

/// The state that all groups of a job share.
#[derive(Debug)]
struct Job {
    /// The store below `default_pg` and `0/`.
    store: Store,
    rank: Rank,
    size: WorldSize,
    /// Subgroups are numbered in the order of their creation, whether this rank is a member or not.
    groups_made: AtomicU64,
    reporter: Option<Reporter>,
}

impl ProcessGroup {
    /// This process's rank in the group.
    pub fn rank(&self) -> Rank {
        self.inner.rank
    }

    /// How many processes the group has.
    pub fn size(&self) -> WorldSize {
        self.inner.size
    }

    /// The members' ranks in the whole job, in group order.
    pub fn members(&self) -> &[Rank] {
        &self.inner.members
    }

    /// The group's name: `0` for the default group, then numbers in the order of creation.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The library that carries its messages: never [`Backend::Auto`], but what that chose. If there are two, that of calls without a
    /// tensor, [`BackendConfig::default_backend`].
    pub fn backend(&self) -> Backend {
        self.inner.backends.default_backend()
    }

    /// The backends of all devices.
    pub fn backends(&self) -> BackendConfig {
        self.inner.backends
    }

    /// Why [`Backend::Auto`] chose this group's backend. `None` if the program named it.
    pub fn why_backend(&self) -> Option<&str> {
        self.inner.why_backend.as_deref()
    }

    /// The device of the tensors in its operations: the GPU if it takes tensors of both.
    pub fn device(&self) -> Device {
        self.backend().device()
    }

    /// Timeout of every operation that does not have its own.
    pub fn timeout(&self) -> Duration {
        self.inner.set_timeout().unwrap_or(self.inner.options.timeout)
    }

    /// Sets the [timeout](Self::timeout) of operations that are called from now on, the reducer's and layers' included; PyTorch's
    /// `ProcessGroup.set_timeout`. Ranks that start at different times need longer to connect than a step may take.
    ///
    /// ```no_run
    /// # fn f(store: &c10d::Store, rank: c10d::Rank, size: c10d::WorldSize) -> c10d::Result<()> {
    /// let group = c10d::ProcessGroup::gloo(store, rank, size, &c10d::GroupOptions::default())?;
    /// group.set_timeout(std::time::Duration::from_secs(60))
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Internal`, if libtorch refuses it.
    pub fn set_timeout(&self, timeout: Duration) -> Result<()> {
        // SAFETY: the group is alive as long as self.
        let set = unsafe { ffi::lc_group_set_timeout(self.as_ptr(), millis(timeout)) };
        set.check().map_err(|exception| Error::new("set_timeout", exception).at_rank(self.rank()))?;
        *self.inner.set_timeout.lock().unwrap_or_else(PoisonError::into_inner) = Some(timeout);
        Ok(())
    }

    /// Runs `calls`, each of which has this timeout instead of the group's; PyTorch's `timeout` of a call's options.
    ///
    /// It holds for the group's operations, their later waits included, but not for the reducer and layers, for which
    /// [`set_timeout`](Self::set_timeout) does. A collective that
    /// was late leaves the group unusable, as always: its peers lose the connection.
    ///
    /// ```no_run
    /// # fn f(group: &c10d::ProcessGroup, mut tensor: tch::Tensor) -> c10d::Result<()> {
    /// let soon = std::time::Duration::from_secs(10);
    /// group.with_timeout(soon, |group| group.all_reduce(&mut tensor, c10d::ReduceOp::Sum))
    /// # }
    /// ```
    pub fn with_timeout<T>(&self, timeout: Duration, calls: impl FnOnce(&Self) -> T) -> T {
        struct Restore<'a>(&'a Cell<Option<Duration>>, Option<Duration>);
        impl Drop for Restore<'_> {
            fn drop(&mut self) {
                self.0.set(self.1);
            }
        }
        let _restore = Restore(&self.timeout, self.timeout.replace(Some(timeout)));
        calls(self)
    }

    /// The timeout of the calls that are made now, if they have one of their own.
    pub(crate) fn own_timeout(&self) -> Option<Duration> {
        self.timeout.get()
    }

    /// How long a message is waited for, if not as long as its backend says: Gloo's messages keep the timeout with which it connected.
    /// A wait for NCCL with a limit blocks the calling thread.
    pub(crate) fn message_timeout(&self) -> Option<Duration> {
        let set = || self.inner.set_timeout().filter(|_| self.backend().connects_at_once());
        self.own_timeout().or_else(set)
    }

    /// The same as the shim encodes it: negative for the group's.
    pub(crate) fn timeout_ms(&self) -> i64 {
        self.own_timeout().map_or(-1, millis)
    }

    /// The options that the group was created with.
    pub fn options(&self) -> &GroupOptions {
        &self.inner.options
    }

    /// How much is checked before each collective.
    pub fn debug_level(&self) -> DebugLevel {
        self.inner.debug
    }

    /// The job's store, below the default group's prefix, for small agreements between ranks. Keys that begin with
    /// `lockstep/` belong to this crate.
    pub fn store(&self) -> &Store {
        &self.inner.job.store
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    pub(crate) fn as_ptr(&self) -> *mut GroupHandle {
        self.inner.handle.group.as_ptr()
    }
}

/// Records that this rank leaves before its connections close: peers that see them closed look for the record.
impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(reporter) = self.job.reporter.as_ref().filter(|_| !self.is_aborted()) {
            reporter.leave_group(&self.name);
        }
    }
}

impl Inner {
    fn set_timeout(&self) -> Option<Duration> {
        *self.set_timeout.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn rank(&self) -> Rank {
        self.rank
    }

    pub(crate) fn backends(&self) -> BackendConfig {
        self.backends
    }

    /// Returns true if this rank has aborted the group.
    pub(crate) fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Relaxed)
    }

    /// Whether the group may be freed when it has no users.
    pub(crate) fn lifetime(&self) -> &Lifetime {
        &self.handle.lifetime
    }
}
