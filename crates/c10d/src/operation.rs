//! An operation of libtorch: its handle, what is left of it when its `Work` is dropped, and how long its group lives.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::ffi::{self, Exception, WorkHandle};
use crate::{Backend, BackendConfig};

/// An operation of libtorch.
#[derive(Debug)]
pub(crate) struct Handle(pub(crate) NonNull<WorkHandle>);

// SAFETY: c10d::Work guards its state with a mutex and may be waited for from any thread; the handle has one owner.
unsafe impl Send for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle came from the shim and is freed once; c10d keeps everything that an unfinished operation needs.
        unsafe { ffi::lc_work_free(self.0.as_ptr()) };
    }
}

impl Handle {
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> Result<(), Exception> {
        let timeout_ms = timeout.map_or(0, crate::store::millis);
        // SAFETY: the handle is alive, and only its one owner waits.
        unsafe { ffi::lc_work_wait(self.0.as_ptr(), timeout_ms) }.check()
    }

    /// The rank that sent the message, after a successful wait.
    pub(crate) fn source(&self) -> Result<usize, Exception> {
        let mut source = -1;
        // SAFETY: the handle is alive and `source` may be written.
        unsafe { ffi::lc_work_source_rank(self.0.as_ptr(), &mut source) }.check()?;
        let unknown = || Exception { kind: ffi::Kind::Other, message: format!("a message came from rank {source}") };
        usize::try_from(source).map_err(|_| unknown())
    }

    /// Handles without a status (Gloo's sends and receives) are queried by waiting.
    pub(crate) fn is_completed(&self) -> bool {
        let mut completed = false;
        // SAFETY: the handle is alive and `completed` may be written.
        let status = unsafe { ffi::lc_work_is_completed(self.0.as_ptr(), &mut completed) };
        status.check().is_ok() && completed
    }
}

/// A collective whose `Work` has been dropped.
#[derive(Debug)]
pub(crate) struct Abandoned {
    handle: Option<Handle>,
    group: Lifetime,
    backend: Backend,
}

impl Abandoned {
    pub(crate) fn new(handle: Handle, group: Lifetime, backend: Backend) -> Self {
        Abandoned { handle: Some(handle), group, backend }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.handle.as_ref().is_none_or(Handle::is_completed)
    }

    /// Returns true if the group cannot be freed before it: on NCCL it can.
    pub(crate) fn keeps(&self, group: &Lifetime) -> bool {
        self.group == *group && !self.backend.is_nccl()
    }

    /// Waits for the operation, up to its own timeout.
    pub(crate) fn end(mut self) {
        self.wait(None);
    }

    /// The memory of a failed operation is never freed: Gloo's thread may still use it.
    fn wait(&mut self, timeout: Option<Duration>) {
        if let Some(handle) = self.handle.take()
            && let Err(exception) = handle.wait(timeout)
        {
            self.group.end_after(self.backend, &Error::new(String::new(), exception));
            std::mem::forget(handle);
        }
    }
}

impl Drop for Abandoned {
    /// The operation has ended, so the wait returns immediately.
    fn drop(&mut self) {
        self.wait(Some(Duration::from_millis(1)));
    }
}

/// Whether a group may be freed when it has no users; shared with its dropped operations.
///
/// After a timeout Gloo has closed all connections, but its thread may still use memory that belongs to the group. Such
/// a group lives until the process exits.
#[derive(Clone, Debug)]
pub(crate) struct Lifetime {
    endless: Arc<AtomicBool>,
}

impl Lifetime {
    pub(crate) fn new() -> Self {
        Lifetime { endless: Arc::default() }
    }

    /// An operation of the group has failed with this error.
    pub(crate) fn end_after(&self, backend: Backend, error: &Error) {
        if backend == Backend::Gloo && error.kind() == ErrorKind::Timeout {
            self.endless.store(true, Ordering::Relaxed);
        }
    }

    /// A group on these backends is aborted, as its operations are after a timeout.
    pub(crate) fn end_after_abort(&self, backends: BackendConfig) {
        if backends.all().any(|backend| backend == Backend::Gloo) {
            self.endless.store(true, Ordering::Relaxed);
        }
    }

    /// Returns true if the group must not be freed, as far as its operations have ended.
    pub(crate) fn is_endless(&self) -> bool {
        self.endless.load(Ordering::Relaxed)
    }
}

impl PartialEq for Lifetime {
    /// Two handles are equal if they belong to the same group.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.endless, &other.endless)
    }
}
