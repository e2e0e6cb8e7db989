//! Work: an operation in progress that owns its tensors until `wait` returns them.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tch::Tensor;

use crate::desync_report::{CallKind, Entry};
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::{self, Exception, Status, WorkHandle};
use crate::group::Inner;
use crate::lifetime::{Abandoned, InUse, Lifetime, OwnedWork};
use crate::recording::{Message, Passed, Recorded};
use crate::{Backend, Rank, stragglers};

/// A group's operation from start to end: the facts for an error message, the entry in the rank's report, and the recording.
#[derive(Debug)]
pub(crate) struct Call {
    group: Arc<Inner>,
    backend: Backend,
    operation: String,
    peer: Option<Rank>,
    begun: Instant,
    entry: Option<Entry>,
    kind: CallKind,
    /// Until the end of the call, if it is recorded.
    recorded: Option<Box<Recorded>>,
}

impl Call {
    /// A call that all ranks of the group make, with these tensors.
    pub(crate) fn collective(group: &Arc<Inner>, operation: String, passed: Option<Passed>) -> Self {
        Self::of_all(group, operation, passed, false)
    }

    /// A call that all ranks make to code of libtorch that communicates.
    pub(crate) fn inside(group: &Arc<Inner>, operation: String) -> Self {
        Self::of_all(group, operation, None, false)
    }

    /// A pass through a graph, in which libtorch communicates while it computes. All ranks call it.
    pub(crate) fn pass(group: &Arc<Inner>, operation: String) -> Self {
        Self::of_all(group, operation, None, true)
    }

    /// `computes`: the rank computes meanwhile.
    fn of_all(group: &Arc<Inner>, operation: String, passed: Option<Passed>, computes: bool) -> Self {
        let entry = group.enter(&operation, CallKind::Collective, None);
        let recorded = Recorded::enter(group, &operation, None, passed, computes);
        Self::new(group, operation, CallKind::Collective, entry, None, recorded)
    }

    /// A message to or from a rank, or from any rank. The report names the peer, which reveals a cycle of ranks that wait
    /// for each other.
    pub(crate) fn message(group: &Arc<Inner>, operation: String, message: Message, passed: Option<Passed>) -> Self {
        let Message { way, peer, .. } = message;
        let whom = peer.map_or("anybody".to_owned(), |peer| format!("rank {peer}"));
        let named = format!("{operation} {} {whom}", way.word());
        let entry = group.enter(&named, CallKind::Message, peer);
        let recorded = passed.and_then(|passed| Recorded::enter(group, &named, Some(message), Some(passed), false));
        Self::new(group, operation, CallKind::Message, entry, peer, recorded)
    }

    /// A call that does not involve other ranks.
    pub(crate) fn local(group: &Arc<Inner>, operation: String) -> Self {
        Self::new(group, operation, CallKind::Collective, None, None, None)
    }

    fn new(
        group: &Arc<Inner>,
        operation: String,
        kind: CallKind,
        entry: Option<Entry>,
        peer: Option<Rank>,
        recorded: Option<Recorded>,
    ) -> Self {
        let (group, backend) = (Arc::clone(group), group.backends().default_backend());
        Call { group, backend, operation, peer, begun: Instant::now(), entry, kind, recorded: recorded.map(Box::new) }
    }

    /// Records the backend of the call, if it is not the group's default.
    pub(crate) fn on(mut self, backend: Backend) -> Self {
        self.backend = backend;
        self
    }

    /// At the end of the call the rank only waited for this long.
    pub(crate) fn waited(&mut self, time: Duration) {
        if let Some(recorded) = &mut self.recorded {
            recorded.waited(time);
        }
    }

    /// Ends the call, with or without an error.
    pub(crate) fn end<T>(mut self, result: Result<T, Exception>) -> Result<T> {
        match result {
            Ok(value) => {
                self.record_end(None);
                Ok(value)
            }
            Err(exception) => Err(self.failed(exception)),
        }
    }

    fn record_end(&mut self, error: Option<String>) {
        if let Some(recorded) = self.recorded.take() {
            recorded.leave(error);
        }
    }

    fn failed(&mut self, exception: Exception) -> Error {
        if self.group.is_aborted() {
            self.record_end(Some(format!("{:?}", ErrorKind::Aborted)));
            // libtorch's own error is only a consequence of the abort.
            return Error::aborted(std::mem::take(&mut self.operation))
                .at_rank(self.group.rank())
                .after(self.begun.elapsed());
        }
        let error = Error::new(std::mem::take(&mut self.operation), exception)
            .at_rank(self.group.rank())
            .with_peer(self.peer.map(|peer| format!("rank {peer}")))
            .after(self.begun.elapsed());
        // Before the other ranks are asked, which takes seconds.
        self.record_end(Some(format!("{:?}", error.kind())));
        self.group.lifetime().end_after(self.backend, &error);
        match self.entry.take() {
            Some(entry) => self.group.explain(error, entry),
            None => error,
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if let Some(recorded) = self.recorded.take() {
            recorded.give_up();
        }
        if let Some(entry) = self.entry.take() {
            self.group.leave(entry);
        }
    }
}

/// The direction of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    To,
    From,
}

impl Way {
    fn word(self) -> &'static str {
        match self {
            Way::To => "to",
            Way::From => "from",
        }
    }
}

/// A started operation, without its tensors.
#[derive(Debug)]
pub(crate) struct Pending {
    running: Running,
    call: Call,
    /// For a message: the maximum length of a wait, if not the group's timeout. A collective has its own timeout.
    limit: Option<Duration>,
}

/// An operation and the memory that it uses exclusively.
#[derive(Debug)]
struct Running {
    handle: Option<OwnedWork>,
    memory: Option<InUse>,
    kind: CallKind,
    group: Lifetime,
    backend: Backend,
}

impl Running {
    fn take(&mut self) -> Option<(OwnedWork, InUse)> {
        self.handle.take().zip(self.memory.take())
    }
}

impl Drop for Running {
    /// Dropped without a wait: a collective continues; a message ends with its handle.
    fn drop(&mut self) {
        if let Some((handle, memory)) = self.take()
            && self.kind == CallKind::Collective
        {
            memory.until_over(Abandoned::new(handle, self.group.clone(), self.backend));
        }
    }
}

impl Pending {
    /// Starts an operation, which uses its tensors' memory exclusively until it ends.
    pub(crate) fn start(
        call: Call,
        memory: InUse,
        launch: impl FnOnce(*mut *mut WorkHandle) -> Status,
    ) -> Result<Self> {
        if call.group.is_aborted() {
            return call.end(Err(Exception { kind: ffi::Kind::Other, message: String::new() }));
        }
        Self::started(call, memory, ffi::made(launch))
    }

    /// Takes over an operation that has been started or has failed to start.
    pub(crate) fn started(call: Call, memory: InUse, handle: Result<NonNull<WorkHandle>, Exception>) -> Result<Self> {
        match handle {
            Ok(handle) => {
                let (handle, memory) = (Some(OwnedWork(handle)), Some(memory));
                let (kind, group, backend) = (call.kind, call.group.lifetime().clone(), call.backend);
                Ok(Pending { running: Running { handle, memory, kind, group, backend }, call, limit: None })
            }
            Err(exception) => call.end(Err(exception)),
        }
    }

    /// Sets the limit of a wait.
    pub(crate) fn within(self, limit: Option<Duration>) -> Self {
        Pending { limit, ..self }
    }

    /// Waits; `None` uses the operation's own timeout.
    pub(crate) fn wait(self, timeout: Option<Duration>) -> Result<()> {
        let timeout = timeout.or(self.limit);
        self.wait_and(|handle| handle.wait(timeout), |()| None)
    }

    /// Waits for a receive operation and returns the sender.
    pub(crate) fn wait_with_source(self) -> Result<Rank> {
        let timeout = self.limit;
        let wait = |handle: &OwnedWork| handle.wait(timeout).and_then(|()| handle.source());
        self.wait_and(wait, |source| Some(*source)).map(Rank::new)
    }

    /// `source` takes the sender from the result, if it is not known before. The memory of a failed operation is never freed: Gloo's
    /// thread may still use it.
    fn wait_and<T>(
        self,
        wait: impl FnOnce(&OwnedWork) -> Result<T, Exception>,
        source: impl FnOnce(&T) -> Option<usize>,
    ) -> Result<T> {
        let Pending { mut running, mut call, .. } = self;
        let Some((handle, memory)) = running.take() else {
            return call.end(Err(Exception { kind: ffi::Kind::Other, message: "it was waited for before".into() }));
        };
        if let Some(entry) = call.entry {
            call.group.wait(entry);
        }
        if let Some(recorded) = &call.recorded {
            recorded.waits();
        }
        let result = {
            let _waiting = stragglers::waiting();
            wait(&handle)
        };
        match &result {
            // The wait expired before the operation ended, so the operation continues.
            Err(_) if running.kind == CallKind::Collective && !handle.is_completed() => {
                memory.until_over(Abandoned::new(handle, running.group.clone(), running.backend))
            }
            Err(_) => std::mem::forget(handle),
            Ok(value) => {
                if let (Some(recorded), Some(source)) = (&mut call.recorded, source(value)) {
                    recorded.came_from(source);
                }
                call.record_end(None);
                drop(memory);
            }
        }
        call.end(result)
    }

    fn is_completed(&self) -> bool {
        self.running.handle.as_ref().is_some_and(OwnedWork::is_completed)
    }
}

/// An operation in progress. It owns the tensors that it reads and writes, so that neither can be used too early:
///
/// ```compile_fail
/// # fn f(group: &c10d::ProcessGroup, buffer: tch::Tensor) -> c10d::Result<()> {
/// let work = group.irecv(buffer, c10d::Rank::new(1), 0)?;
/// buffer.print(); // moved into `work`: the message may not be there yet
/// # Ok(()) }
/// ```
///
/// ```no_run
/// # fn f(group: &c10d::ProcessGroup, buffer: tch::Tensor) -> c10d::Result<()> {
/// let work = group.irecv(buffer, c10d::Rank::new(1), 0)?;
/// let buffer = work.wait()?;
/// buffer.print();
/// # Ok(()) }
/// ```
///
/// Dropping a collective without waiting neither cancels it nor reports its failure; libtorch keeps the tensors alive
/// until it ends, and dropping its group waits for it. Dropping a message may abandon it: with Gloo the peer may then
/// wait until its timeout.
#[must_use = "the operation is not finished, and its tensors are not back, until `wait`"]
pub struct Work<T> {
    pending: Pending,
    payload: T,
}

impl<T> Work<T> {
    pub(crate) fn new(pending: Pending, payload: T) -> Self {
        Work { pending, payload }
    }

    /// Waits for the operation, up to its own timeout, and returns the tensors.
    ///
    /// # Errors
    /// The same as the call that started the operation.
    pub fn wait(self) -> Result<T> {
        self.pending.wait(None)?;
        Ok(self.payload)
    }

    /// Waits for the operation, up to `timeout`. After the timeout the tensors are lost: the operation may still write
    /// them.
    ///
    /// # Errors
    /// The same as the call that started the operation.
    pub fn wait_for(self, timeout: Duration) -> Result<T> {
        self.pending.wait(Some(timeout))?;
        Ok(self.payload)
    }

    /// Returns true if `wait` would return immediately. Always false for Gloo's sends and receives: they complete in
    /// `wait`.
    pub fn is_completed(&self) -> bool {
        self.pending.is_completed()
    }
}

impl<T> fmt::Debug for Work<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work").field("call", &self.pending.call).finish_non_exhaustive()
    }
}

/// A message from any rank, in progress; like [`Work`] it owns the tensor until `wait`.
#[must_use = "the message is not there, and its tensor is not back, until `wait`"]
#[derive(Debug)]
pub struct Receiving {
    pending: Pending,
    tensor: Tensor,
}

impl Receiving {
    pub(crate) fn new(pending: Pending, tensor: Tensor) -> Self {
        Receiving { pending, tensor }
    }

    /// Waits for the message and returns the tensor with the rank that sent it.
    ///
    /// # Errors
    /// As [`ProcessGroup::recv_any`](crate::ProcessGroup::recv_any).
    pub fn wait(self) -> Result<(Tensor, Rank)> {
        let source = self.pending.wait_with_source()?;
        Ok((self.tensor, source))
    }
}
