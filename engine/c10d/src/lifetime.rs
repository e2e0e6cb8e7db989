//! When libtorch's objects are freed: operations, which may outlive their `Work`; the memory that they use; and groups, after their
//! last operation.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::ffi::{self, Exception, GroupHandle, WorkHandle};
use crate::{Backend, BackendConfig};

/// An operation of libtorch.
#[derive(Debug)]
pub(crate) struct OwnedWork(pub(crate) NonNull<WorkHandle>);

// SAFETY: c10d::Work guards its state with a mutex and may be waited for from any thread; the handle has one owner.
unsafe impl Send for OwnedWork {}

impl Drop for OwnedWork {
    fn drop(&mut self) {
        // SAFETY: the handle came from the shim and is freed once; c10d keeps everything that an unfinished operation needs.
        unsafe { ffi::lc_work_free(self.0.as_ptr()) };
    }
}

impl OwnedWork {
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
    handle: Option<OwnedWork>,
    group: Lifetime,
    backend: Backend,
}

impl Abandoned {
    pub(crate) fn new(handle: OwnedWork, group: Lifetime, backend: Backend) -> Self {
        Abandoned { handle: Some(handle), group, backend }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.handle.as_ref().is_none_or(OwnedWork::is_completed)
    }

    /// Returns true if the group cannot be freed before this operation ends. On NCCL it can.
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

/// Decides whether a group may be freed when it has no users; shared with its dropped operations.
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

    /// Call it when an operation of the group has failed with this error.
    pub(crate) fn end_after(&self, backend: Backend, error: &Error) {
        if backend == Backend::Gloo && error.kind() == ErrorKind::Timeout {
            self.endless.store(true, Ordering::Relaxed);
        }
    }

    /// Call it when a group on these backends is aborted, which has the same effect as a timeout.
    pub(crate) fn end_after_abort(&self, backends: BackendConfig) {
        if backends.all().any(|backend| backend == Backend::Gloo) {
            self.endless.store(true, Ordering::Relaxed);
        }
    }

    /// Returns true if the group must not be freed, judging by the operations that have ended. Relaxed is enough: the group is freed by
    /// its last owner, and the reference count orders the accesses of all other owners before.
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

// Tracks the memory that operations in progress read or write. tch can clone a tensor without its memory, so the owner of a
// [`Work`](crate::Work) is not the only one who can start another operation on the same values.
//
// There is one table per process because ranks may be threads. Computations of tch on a clone are not visible here.

/// How an operation uses a range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// A range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) begin: u64,
    pub(crate) end: u64,
    pub(crate) access: Access,
}

impl Span {
    fn conflicts(&self, other: &Span) -> bool {
        let both_read = self.access == Access::Read && other.access == Access::Read;
        !both_read && self.begin < other.end && other.begin < self.end
    }

    /// Returns true if two of the ranges conflict. They must be sorted by their start.
    pub(crate) fn sorted_conflict(spans: &[Span]) -> bool {
        let (mut read, mut written) = (0, 0);
        spans.iter().any(|span| {
            let conflict = span.begin < written || (span.access == Access::Write && span.begin < read);
            match span.access {
                Access::Read => read = read.max(span.end),
                Access::Write => written = written.max(span.end),
            }
            conflict
        })
    }
}

#[derive(Debug)]
struct Entry {
    number: u64,
    operation: String,
    spans: Vec<Span>,
    /// The operation itself, once its `Work` has been dropped.
    abandoned: Option<Abandoned>,
}

#[derive(Debug)]
struct Table {
    next: u64,
    entries: Vec<Entry>,
}

static TABLE: Mutex<Table> = Mutex::new(Table { next: 0, entries: Vec::new() });

// The table is consistent whenever the lock is free.
fn table() -> MutexGuard<'static, Table> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Frees dropped operations that have ended. It does not hold the lock, because freeing the last operation of a group may
/// have to wait for others.
fn forget_what_is_over() {
    let is_over = |entry: &mut Entry| entry.abandoned.as_ref().is_some_and(Abandoned::is_over);
    let over: Vec<Entry> = table().entries.extract_if(.., is_over).collect();
    drop(over);
}

/// Waits for the dropped operations of a group that is about to be freed, except on NCCL. Their memory stays in the table until they
/// end.
pub(crate) fn end_abandoned(group: &Lifetime) {
    let next = || {
        let of_group = |entry: &mut Entry| {
            let operation = entry.abandoned.take_if(|operation| operation.keeps(group))?;
            Some((InUse(entry.number), operation))
        };
        table().entries.iter_mut().find_map(of_group)
    };
    while let Some((memory, operation)) = next() {
        operation.end();
        drop(memory);
    }
}

/// Keeps the memory of one operation in the table until it is dropped.
#[derive(Debug)]
pub(crate) struct InUse(u64);

impl InUse {
    /// Adds the memory of an operation that is about to start.
    ///
    /// # Errors
    /// The name of an operation in progress that conflicts with it.
    pub(crate) fn claim(operation: &str, spans: Vec<Span>) -> Result<InUse, String> {
        forget_what_is_over();
        let mut table = table();
        let conflicts = |entry: &&Entry| entry.spans.iter().any(|old| spans.iter().any(|new| old.conflicts(new)));
        if let Some(entry) = table.entries.iter().find(conflicts) {
            return Err(entry.operation.clone());
        }
        let number = table.next;
        table.next += 1;
        table.entries.push(Entry { number, operation: operation.to_owned(), spans, abandoned: None });
        Ok(InUse(number))
    }

    /// Keeps the memory in the table until a dropped operation has ended.
    pub(crate) fn until_over(self, operation: Abandoned) {
        let mut table = table();
        if let Some(entry) = table.entries.iter_mut().find(|entry| entry.number == self.0) {
            entry.abandoned = Some(operation);
        }
        drop(table);
        std::mem::forget(self);
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        table().entries.retain(|entry| entry.number != self.0);
    }
}

// The shim's handle of a group, and how it is freed: after its operations, or by another thread if this one panics.

/// How long a rank that panics waits until its group has been freed.
const GIVE_UP: Duration = Duration::from_secs(1);

/// The shim's object; its last user frees it.
#[derive(Debug)]
pub(crate) struct OwnedGroup {
    pub(crate) group: NonNull<GroupHandle>,
    pub(crate) lifetime: Lifetime,
}

// SAFETY: a c10d process group is not tied to the thread that created it. It only requires that its operations are
// issued in one order, which holds because `ProcessGroup` is not Sync.
unsafe impl Send for OwnedGroup {}
// SAFETY: operations in progress share `Inner`. They only read plain fields of it, and the last one frees the handle.
// Calls that issue operations go through `ProcessGroup`, which is not Sync; an abort may come from any thread.
unsafe impl Sync for OwnedGroup {}

impl OwnedGroup {
    pub(crate) fn new(group: NonNull<GroupHandle>) -> Self {
        OwnedGroup { group, lifetime: Lifetime::new() }
    }
}

impl Drop for OwnedGroup {
    fn drop(&mut self) {
        #[cfg(test)]
        let _after = tests::AfterClose;
        let (group, lifetime) = (Freed(self.group), self.lifetime.clone());
        if !std::thread::panicking() {
            return group.free(&lifetime, false);
        }
        // A panicking rank may leave operations behind, and waiting for them could take as long as their timeout.
        // Another thread waits instead. If there are none, the group is freed in time for the peers to see closed
        // connections.
        let (sender, done) = channel();
        let free = move || {
            group.free(&lifetime, true);
            // The receiver is gone if freeing took long.
            let _ = sender.send(());
        };
        // If no thread can be started, the group lives until the process exits.
        if std::thread::Builder::new().spawn(free).is_ok() {
            let _ = done.recv_timeout(GIVE_UP);
        }
    }
}

/// The handle of a group without users.
struct Freed(NonNull<GroupHandle>);

// SAFETY: as for `OwnedGroup`.
unsafe impl Send for Freed {}

impl Freed {
    fn free(self, lifetime: &Lifetime, give_up: bool) {
        end_abandoned(lifetime);
        if lifetime.is_endless() {
            return;
        }
        // SAFETY: the handle came from the shim and is freed once: its owner passed it here.
        unsafe { ffi::lc_group_free(self.0.as_ptr(), give_up) };
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::options::{Endpoint, GroupOptions};
    use crate::{ProcessGroup, Rank, Store, WorldSize};

    fn span(begin: u64, end: u64, access: Access) -> Span {
        Span { begin, end, access }
    }

    #[test]
    fn writes_conflict_with_everything_that_overlaps_and_reads_do_not_conflict_with_reads() {
        use Access::{Read, Write};
        assert!(!Span::sorted_conflict(&[span(0, 8, Read), span(4, 12, Read)]));
        assert!(Span::sorted_conflict(&[span(0, 8, Read), span(4, 12, Write)]));
        assert!(Span::sorted_conflict(&[span(0, 20, Write), span(2, 4, Read), span(6, 8, Read)]));
        assert!(Span::sorted_conflict(&[span(0, 20, Read), span(2, 4, Read), span(6, 8, Write)]));
        assert!(!Span::sorted_conflict(&[span(0, 8, Write), span(8, 16, Write)]));
    }

    #[test]
    fn a_claim_is_refused_while_a_conflicting_one_is_held() {
        // No tensor of another test has these addresses.
        let (low, high) = (8, 16);
        let held = InUse::claim("first", vec![span(low, high, Access::Write)]).unwrap();
        assert_eq!(InUse::claim("second", vec![span(12, 20, Access::Read)]).unwrap_err(), "first");
        let next_to_it = InUse::claim("third", vec![span(high, 20, Access::Write)]).unwrap();
        drop(held);
        drop(InUse::claim("second", vec![span(low, high, Access::Read)]).unwrap());
        drop(next_to_it);
    }

    type Hook = Box<dyn FnOnce()>;

    thread_local! {
        /// Called after this thread has closed the connections of a group.
        static AFTER_CLOSE: RefCell<Option<Hook>> = const { RefCell::new(None) };
    }

    pub(super) struct AfterClose;

    impl Drop for AfterClose {
        fn drop(&mut self) {
            if let Some(hook) = AFTER_CLOSE.take() {
                hook();
            }
        }
    }

    const LONG: Duration = Duration::from_secs(60);

    fn options() -> GroupOptions {
        GroupOptions { timeout: LONG, endpoint: Endpoint::Interface("lo".into()), ..GroupOptions::default() }
    }

    /// Runs `make` for both ranks at the same time.
    fn both<T: Send>(make: impl Fn(usize) -> T + Sync) -> [T; 2] {
        std::thread::scope(|scope| {
            let second = scope.spawn(|| make(1));
            [make(0), second.join().unwrap()]
        })
    }

    fn pair() -> [ProcessGroup; 2] {
        let (store, world) = (Store::hash().unwrap(), WorldSize::new(2).unwrap());
        both(|rank| ProcessGroup::gloo(&store, Rank::new(rank), world, &options()).unwrap())
    }

    #[test]
    fn a_rank_that_sees_closed_connections_finds_the_record_of_the_leaving_rank() {
        let [ours, theirs] = pair();
        let (asked, wait) = channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                // Rank 0 asks and gets its answer after rank 1 has closed its connections and before it does anything else.
                AFTER_CLOSE.set(Some(Box::new(move || {
                    let _ = wait.recv_timeout(LONG);
                })));
                drop(theirs);
            });
            let error = ours.barrier().unwrap_err().to_string();
            drop(asked);
            assert!(error.contains("rank 1 has left the group after 0 finished calls"), "{error}");
        });
    }

    #[test]
    fn a_rank_that_left_a_subgroup_is_named_though_it_answers_for_the_job() {
        let [ours, theirs] = pair().map(std::sync::Mutex::new);
        let members = [0, 1].map(Rank::new);
        let [our_part, their_part] = both(|rank| {
            let group = [&ours, &theirs][rank].lock().unwrap();
            group.new_group(&members, &options()).unwrap().unwrap()
        });
        drop(their_part);
        let error = our_part.barrier().unwrap_err().to_string();
        assert!(error.contains("rank 1 has left the group after 0 finished calls"), "{error}");
    }

    #[test]
    fn a_group_is_never_freed_after_a_dropped_collective_failed() {
        let [ours, theirs] = pair();
        let lifetime = ours.inner().lifetime().clone();
        let short = lockstep_process::watchdog::scaled(Duration::from_millis(100));
        drop(ours.with_timeout(short, ProcessGroup::barrier_async).unwrap());
        // The group is not freed while the collective may still run.
        drop(ours);
        assert!(lifetime.is_endless(), "libtorch may still use it");
        drop(theirs);
    }

    #[test]
    fn a_group_is_freed_after_a_dropped_collective_succeeded() {
        let pair = pair().map(std::sync::Mutex::new);
        let lifetimes = both(|rank| {
            let group = pair[rank].lock().unwrap();
            drop(group.barrier_async().unwrap());
            group.inner().lifetime().clone()
        });
        drop(pair);
        assert!(lifetimes.iter().all(|lifetime| !lifetime.is_endless()));
    }
}
