//! Process groups: creating them, naming them as Python does, and creating subgroups.
//!
//! Not here: a group's operations (`collectives.rs` and `p2p.rs`), its backend (`backend.rs`), and its options
//! (`options.rs`).

mod abort;
mod subgroups;

pub use abort::Aborter;

use std::cell::Cell;
use std::ops::Sub;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use lockstep_contract::desync_report::Call;
use tch::Device;

use crate::backend::{Connected, MemberConfig};
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::{self, GroupHandle};
use crate::operation::Lifetime;
use crate::options::{DebugLevel, GroupOptions};
use crate::pace::Arrivals;
use crate::reporter::{Entry, Kind, Reporter};
use crate::store::millis;
use crate::{Backend, BackendConfig, Rank, Store, WorldSize, in_use};

/// How long a rank that panics waits until its group has been freed.
const GIVE_UP: Duration = Duration::from_secs(1);

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

/// A number of operations and the bytes of the tensors that a rank has passed to them. An all-reduce of S bytes counts S, however
/// its algorithm moves them; sends count, receives do not, nor does what the ranks exchange to compare calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Operations.
    pub calls: u64,
    /// Bytes.
    pub bytes: u64,
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
}

impl Sub for Traffic {
    type Output = Self;

    /// What was passed since `earlier`.
    fn sub(self, earlier: Self) -> Self {
        Traffic { calls: self.calls - earlier.calls, bytes: self.bytes - earlier.bytes }
    }
}

#[derive(Debug)]
struct Handle {
    group: NonNull<GroupHandle>,
    lifetime: Lifetime,
}

// SAFETY: a c10d process group is not tied to the thread that created it. It only requires that its operations are
// issued in one order, which holds because `ProcessGroup` is not Sync.
unsafe impl Send for Handle {}
// SAFETY: operations in progress share `Inner`. They only read plain fields of it, and the last one frees the handle.
// Calls that issue operations go through `ProcessGroup`, which is not Sync; an abort may come from any thread.
unsafe impl Sync for Handle {}

impl Drop for Handle {
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

/// A group without users.
struct Freed(NonNull<GroupHandle>);

// SAFETY: as for `Handle`.
unsafe impl Send for Freed {}

impl Freed {
    fn free(self, lifetime: &Lifetime, give_up: bool) {
        in_use::end_abandoned(lifetime);
        if lifetime.is_endless() {
            return;
        }
        // SAFETY: the handle came from the shim and is freed once: its owner passed it here.
        unsafe { ffi::lc_group_free(self.0.as_ptr(), give_up) };
    }
}

impl ProcessGroup {
    /// Joins the default group of a job on Gloo: blocks until all `size` ranks have joined.
    ///
    /// Names and store prefixes are those of Python's `init_process_group("gloo")` (`default_pg`, `0/`, `cpu/`), so
    /// that Python ranks and Rust ranks can form one group.
    ///
    /// # Errors
    /// `BadArgument` for a rank outside the world or an unknown interface, `Timeout` with the names of the missing
    /// ranks, `PeerGone` if the store or a rank is unreachable.
    pub fn gloo(store: &Store, rank: Rank, size: WorldSize, options: &GroupOptions) -> Result<Self> {
        Self::new(Backend::Gloo, store, rank, size, options)
    }

    /// Joins the default group of a job on NCCL, as Python's `init_process_group("nccl")` does, with store prefix
    /// `cuda/`. `device` is this rank's GPU, which no other rank may use; it becomes the current device of the calling
    /// thread. CUDA's libraries are loaded if necessary. Python's default for NCCL is 10 minutes, not Gloo's 30: set
    /// [`GroupOptions::timeout`] to [`Backend::default_timeout`] for the same.
    ///
    /// NCCL connects in the first operation. Operations are queued on the GPU: [`Work::wait`](crate::Work::wait)
    /// returns when later work on the GPU will see the result. A failure or an expired timeout shows later and then, by
    /// libtorch's default, ends the process; with `TORCH_NCCL_BLOCKING_WAIT=1`, `wait` returns it as an error. Messages
    /// have no tags. NCCL's flight recorder is off unless `TORCH_FR_BUFFER_SIZE` is set.
    ///
    /// # Errors
    /// As [`ProcessGroup::gloo`]; `BadArgument` for a device that does not exist or a build without NCCL
    /// ([`Backend::HAS_NCCL`]), `Internal` for missing CUDA libraries ([`cuda::load`](crate::cuda::load)).
    pub fn nccl(store: &Store, rank: Rank, size: WorldSize, device: Device, options: &GroupOptions) -> Result<Self> {
        let Device::Cuda(device) = device else {
            let detail = format!("NCCL needs a CUDA device, not {device:?}: use Gloo for the CPU");
            return Err(Error::bad_argument("init_process_group", detail).at_rank(rank));
        };
        Self::new(Backend::Nccl { device }, store, rank, size, options)
    }

    /// Joins the default group of a job on any backend, as [`ProcessGroup::gloo`] and [`ProcessGroup::nccl`] do, or on one for host
    /// memory and one for GPUs, as Python's `init_process_group("cpu:gloo,cuda:nccl")`: see [`BackendConfig`]. Each operation then
    /// goes to the backend of its tensors' device, and a barrier to [`BackendConfig::default_backend`].
    ///
    /// # Errors
    /// Those of [`ProcessGroup::gloo`]; with [`Backend::SharedMemory`] also `BadArgument` if the ranks cannot share memory,
    /// with the reason.
    pub fn new(
        backends: impl Into<BackendConfig>,
        store: &Store,
        rank: Rank,
        size: WorldSize,
        options: &GroupOptions,
    ) -> Result<Self> {
        let backends = backends.into();
        if !size.contains(rank) {
            return Err(Error::bad_argument("init_process_group", format!("rank {rank} is outside a world of {size}")));
        }
        backends.prepare().map_err(|error| error.at_rank(rank))?;
        let store = store.prefix("default_pg")?.prefix("0/")?;
        let own = own_keys(&store, backends)?;
        let reporter = options.desync_report.then(|| Reporter::start(&own, rank, size)).transpose()?;
        let job = Arc::new(Job { store, rank, size, groups_made: AtomicU64::new(1), reporter });
        Self::make(backends, "0".into(), size.ranks().collect(), rank, job, options)
    }

    fn make(
        asked: BackendConfig,
        name: String,
        members: Vec<Rank>,
        rank: Rank,
        job: Arc<Job>,
        options: &GroupOptions,
    ) -> Result<ProcessGroup> {
        let size = WorldSize::new(members.len()).unwrap_or(WorldSize::ONE);
        let debug = options.debug.map_or_else(DebugLevel::from_env, Ok)?;
        // DETAIL has its own comparison, which Python ranks take part in.
        let compares = options.compares()? && debug != DebugLevel::Detail;
        let options = &GroupOptions { compare_calls: Some(options.compares()?), ..options.clone() };
        // The default group's store is `0/` itself; a subgroup's is below it, as in Python.
        let group_store = if name == "0" { None } else { Some(job.store.prefix(&format!("{name}/"))?) };
        let store = group_store.as_ref().unwrap_or(&job.store);
        let member = MemberConfig { store, name: &name, members: &members, rank, options };
        let own = own_keys(store, asked)?;
        let waits = options.desync_report && !asked.connects_at_once();
        let connected = announce(&own, rank)
            .and_then(|()| if waits { wait_for_members(&member, &own, size) } else { Ok(()) })
            .and_then(|()| asked.connect(&member, debug == DebugLevel::Detail, compares))
            .map_err(|error| explain_absence(error.at_rank(rank), &own, size))?;
        let Connected { group, backends, why } = connected;
        let handle = Handle { group, lifetime: Lifetime::new() };
        // SAFETY: the group is alive.
        let arrivals = unsafe { Arrivals::of(handle.group.as_ptr(), size) };
        if let Some((reporter, arrivals)) = job.reporter.as_ref().zip(arrivals).filter(|_| name == "0") {
            reporter.attach(arrivals);
        }
        let options = options.clone();
        let aborted = AtomicBool::new(false);
        let inner = Inner {
            handle,
            name,
            rank,
            size,
            asked,
            backends,
            why_backend: why,
            members,
            job,
            options,
            debug,
            aborted,
        };
        Ok(ProcessGroup { inner: Arc::new(inner), timeout: Cell::new(None) })
    }

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
        self.inner.options.timeout
    }

    /// Runs `calls`, each of which has this timeout instead of the group's; PyTorch's `timeout` of a call's options.
    ///
    /// It holds for the group's operations, their later waits included, but not for the reducer and layers. A collective that
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

    /// The same as the shim encodes it: negative for the group's.
    pub(crate) fn timeout_ms(&self) -> i64 {
        self.own_timeout().map_or(-1, millis)
    }

    /// The options that the group was created with.
    pub fn options(&self) -> &GroupOptions {
        &self.inner.options
    }

    /// What this rank has passed to the group's operations so far, whoever called them: the training loop, a
    /// [`Reducer`](crate::Reducer) or a layer. `None` with NCCL, whose calls nothing counts; with two other backends, only what went
    /// through [`backend`](Self::backend).
    pub fn traffic(&self) -> Option<Traffic> {
        let mut traffic = Traffic::default();
        // SAFETY: the group is alive, and both numbers are written before the call returns.
        let is_counted = unsafe { ffi::lc_group_traffic(self.as_ptr(), &mut traffic.calls, &mut traffic.bytes) };
        is_counted.then_some(traffic)
    }

    /// Records this rank's calls in all groups of the job from now on, and forgets earlier ones.
    pub fn record_calls(&self) {
        if let Some(reporter) = &self.inner.job.reporter {
            reporter.record_calls();
        }
    }

    /// The calls since [`record_calls`](Self::record_calls). What a [`Reducer`](crate::Reducer) exchanges is not among them, nor is
    /// anything if the job has no desync reports.
    pub fn called(&self) -> Vec<Called> {
        self.inner.job.reporter.as_ref().map(Reporter::called).unwrap_or_default()
    }

    /// How long this rank has waited for each rank in the group's collectives. `None` unless the ranks share memory, where each
    /// sees when the others arrive.
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

    pub(crate) fn enter(&self, operation: &str, kind: Kind) -> Option<Entry> {
        self.job.reporter.as_ref().map(|reporter| reporter.enter(&self.name, &self.members, operation, kind))
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

    /// Whether the group may be freed when it has no users.
    pub(crate) fn lifetime(&self) -> &Lifetime {
        &self.handle.lifetime
    }

    /// Adds the reports of other ranks that may be involved in the failure: the peer of a message, otherwise all.
    pub(crate) fn explain(&self, error: Error, entry: Entry, peer: Option<Rank>) -> Error {
        match &self.job.reporter {
            Some(reporter) if error.kind() == ErrorKind::BadArgument || self.size == WorldSize::ONE => {
                reporter.leave(entry);
                error
            }
            Some(reporter) => {
                let why = format!("{:?}", error.kind());
                let peer = peer.and_then(|peer| self.members.get(peer.get()));
                let asked = peer.map_or(self.members.as_slice(), std::slice::from_ref);
                error.with_desync_report(reporter.report(entry, &why, &self.name, asked))
            }
            None => error,
        }
    }
}

/// The prefix of this crate's own keys: below the backend's prefix, so that two default groups on one store, one for
/// Gloo and one for NCCL, do not confuse their keys.
fn own_keys(store: &Store, backends: BackendConfig) -> Result<Store> {
    store.prefix(backends.store_prefix())
}

fn present_key(rank: Rank) -> String {
    format!("lockstep/present/{rank}")
}

/// Records in the store that this rank has arrived, for the error message of ranks that wait for others.
fn announce(store: &Store, rank: Rank) -> Result<()> {
    store.set(&present_key(rank), "1")
}

/// Waits until all ranks have arrived.
fn wait_for_members(member: &MemberConfig<'_>, store: &Store, size: WorldSize) -> Result<()> {
    let begun = Instant::now();
    let keys: Vec<String> = size.ranks().map(present_key).collect();
    let waited = store.wait(&keys, member.options.timeout);
    waited.map_err(|error| Error::with_kind(error.kind(), member.operation(), error.detail()).after(begun.elapsed()))
}

/// Adds the names of the ranks that never arrived to the error of an incomplete group.
fn explain_absence(error: Error, store: &Store, size: WorldSize) -> Error {
    if !matches!(error.kind(), ErrorKind::Timeout | ErrorKind::PeerGone) {
        return error;
    }
    let absent: Vec<Rank> =
        size.ranks().filter(|&rank| matches!(store.check(&[present_key(rank)]), Ok(false))).collect();
    if absent.is_empty() {
        return error;
    }
    let detail = format!("never came: {}: {}", list(&absent), error.detail());
    error.with_detail(detail)
}

fn list(ranks: &[Rank]) -> String {
    let word = if ranks.len() == 1 { "rank" } else { "ranks" };
    let numbers: Vec<String> = ranks.iter().map(Rank::to_string).collect();
    format!("{word} {}", numbers.join(", "))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::options::Endpoint;

    #[test]
    fn ranks_that_never_arrive_in_the_store_are_named() {
        let (store, options) = (Store::hash().unwrap(), GroupOptions::default());
        let options = GroupOptions { timeout: Duration::from_millis(100), ..options };
        let (size, members) = (WorldSize::new(3).unwrap(), [0, 1, 2].map(Rank::new));
        let member = MemberConfig { store: &store, name: "0", members: &members, rank: Rank::ZERO, options: &options };
        announce(&store, Rank::ZERO).unwrap();
        let error =
            explain_absence(wait_for_members(&member, &store, size).unwrap_err().at_rank(Rank::ZERO), &store, size);
        assert_eq!(error.kind(), ErrorKind::Timeout);
        let text = error.to_string();
        assert!(text.starts_with("connect process group 0 of 3 ranks on rank 0 timed out"), "{text}");
        assert!(text.contains("never came: ranks 1, 2"), "{text}");
        [1, 2].into_iter().for_each(|rank| announce(&store, Rank::new(rank)).unwrap());
        wait_for_members(&member, &store, size).unwrap();
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
        let (store, world) = (Store::hash().unwrap(), WorldSize::new(2).unwrap());
        let short = GroupOptions { timeout: lockstep_watchdog::scaled(Duration::from_secs(1)), ..options() };
        let [ours, theirs] = both(|rank| ProcessGroup::gloo(&store, Rank::new(rank), world, &short).unwrap());
        let lifetime = ours.inner.lifetime().clone();
        drop(ours.barrier_async().unwrap());
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
            group.inner.lifetime().clone()
        });
        drop(pair);
        assert!(lifetimes.iter().all(|lifetime| !lifetime.is_endless()));
    }

    #[test]
    fn leaving_the_default_group_of_one_backend_does_not_affect_another_backend() {
        let (store, world) = (Store::hash().unwrap(), WorldSize::new(2).unwrap());
        let reporter = |backend: Backend, rank| {
            Reporter::start(&own_keys(&store, backend.into()).unwrap(), Rank::new(rank), world).unwrap()
        };
        let (gloo, nccl) = (reporter(Backend::Gloo, 1), Backend::Nccl { device: 0 });
        gloo.leave_group("0");
        let [ours, _theirs] = [reporter(nccl, 0), reporter(nccl, 1)];
        let entry = ours.enter("0", &[], "all_reduce", Kind::Collective);
        let text = ours.report(entry, "Timeout", "0", &[Rank::ZERO, Rank::new(1)]).to_string();
        assert!(text.contains("rank 1 was outside any collective, after 0 finished calls"), "{text}");
    }
}
