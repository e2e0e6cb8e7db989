//! Process groups: their properties, timeouts, abort, and the records of their calls; then joining a group, and subgroups. A group's
//! backends connect once all ranks have arrived; the error names ranks that never do.
//!
//! Not here: a group's operations (`collectives.rs` and `p2p.rs`), its backend (`backend.rs`), its options (`options.rs`), and when it is
//! freed (`lifetime.rs`).

use std::cell::Cell;
use std::ops::Sub;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use tch::Device;

use crate::backend::{Connected, MemberConfig};
use crate::desync_report::{CallKind, Called, Entry, Reporter};
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::{self, GroupHandle};
use crate::lifetime::{Lifetime, OwnedGroup};
use crate::options::{DebugLevel, GroupOptions};
use crate::recording::Recording;
use crate::store::millis;
use crate::stragglers::Arrivals;
use crate::{Backend, BackendConfig, Rank, Store, WorldSize};

/// This rank's handle to a set of processes that communicate.
///
/// All ranks must make the same calls in the same order. c10d requires one thread per group, so this type is `Send` but
/// not `Sync`.
#[derive(Debug)]
pub struct ProcessGroup {
    inner: Arc<Inner>,
    /// The timeout of calls inside [`ProcessGroup::with_timeout`]. The `Cell` also makes the type not `Sync`.
    timeout: Cell<Option<Duration>>,
}

/// The part of a `ProcessGroup` that lives as long as its last operation.
#[derive(Debug)]
pub(crate) struct Inner {
    handle: OwnedGroup,
    name: String,
    rank: Rank,
    size: WorldSize,
    /// The configuration that the caller requested; subgroups request the same.
    asked: BackendConfig,
    backends: BackendConfig,
    why_backend: Option<String>,
    /// The members' ranks in the whole job, in group order.
    members: Vec<Rank>,
    job: Arc<JobState>,
    options: GroupOptions,
    /// Set by [`ProcessGroup::set_timeout`].
    set_timeout: Mutex<Option<Duration>>,
    debug: DebugLevel,
    aborted: AtomicBool,
}

/// The state that all groups of a job share.
#[derive(Debug)]
struct JobState {
    /// The store below `default_pg` and `0/`.
    store: Store,
    rank: Rank,
    size: WorldSize,
    /// Subgroups are numbered in the order of their creation, whether this rank is a member or not.
    groups_made: AtomicU64,
    reporter: Option<Reporter>,
    recording: Option<Recording>,
}

impl ProcessGroup {
    /// This process's rank in the group.
    pub fn rank(&self) -> Rank {
        self.inner.rank
    }

    /// The number of processes in the group.
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

    /// The library that carries the group's messages: never [`Backend::Auto`], but the one that it chose. With two backends, the one
    /// for calls without a tensor, [`BackendConfig::default_backend`].
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

    /// The device of the tensors in the group's operations: the GPU if the group takes tensors on both.
    pub fn device(&self) -> Device {
        self.backend().device()
    }

    /// Timeout of every operation that does not have its own.
    pub fn timeout(&self) -> Duration {
        self.inner.set_timeout().unwrap_or(self.inner.options.timeout)
    }

    /// Sets the [timeout](Self::timeout) of all later operations, including those of the reducer and layers; PyTorch's
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

    /// Runs `calls`, each with this timeout instead of the group's; PyTorch's `timeout` in a call's options.
    ///
    /// The timeout applies to the group's operations and their later waits, but not to the reducer and layers: see
    /// [`set_timeout`](Self::set_timeout). A collective that was late leaves the group unusable, as always, because its
    /// peers lose the connection.
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

    /// The timeout of the present calls, if they have their own.
    fn own_timeout(&self) -> Option<Duration> {
        self.timeout.get()
    }

    /// The limit of a wait for a message, if it differs from the backend's: Gloo's messages keep the timeout with which it connected.
    /// A wait for NCCL with a limit blocks the calling thread.
    pub(crate) fn message_timeout(&self) -> Option<Duration> {
        let set = || self.inner.set_timeout().filter(|_| self.backend().connects_at_once());
        self.own_timeout().or_else(set)
    }

    /// The timeout as the shim encodes it: negative means the group's.
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

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn backends(&self) -> BackendConfig {
        self.backends
    }

    /// Where the rank's calls are recorded.
    pub(crate) fn recording(&self) -> Option<&Recording> {
        self.job.recording.as_ref()
    }

    /// The rank in the job of a rank of this group.
    pub(crate) fn job_rank(&self, rank: Rank) -> Option<Rank> {
        self.members.get(rank.get()).copied()
    }

    /// See [`ProcessGroup::traffic`].
    pub(crate) fn traffic(&self) -> Option<Traffic> {
        let mut traffic = Traffic::default();
        let group = self.handle.group.as_ptr();
        // SAFETY: the group is alive, and both numbers are written before the call returns.
        let is_counted = unsafe { ffi::lc_group_traffic(group, &mut traffic.calls, &mut traffic.bytes) };
        is_counted.then_some(traffic)
    }

    /// Returns true if this rank has aborted the group. Relaxed is enough: a caller asks after an operation has failed. The abort sets this
    /// flag before it makes that operation fail, through the lock or the connection on which the operation waited. The reference count
    /// orders the drop after all other accesses.
    pub(crate) fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Relaxed)
    }

    /// Decides whether the group may be freed when it has no users.
    pub(crate) fn lifetime(&self) -> &Lifetime {
        &self.handle.lifetime
    }
}

// Aborting a group ends the calls that wait in it, on this rank and on the others.

impl ProcessGroup {
    /// Ends all operations of the group, here and on its other ranks, and leaves it unusable; PyTorch's
    /// `_abort_process_group`.
    ///
    /// Operations of this rank, those in progress and later ones, fail with [`ErrorKind::Aborted`](crate::ErrorKind::Aborted).
    /// Operations of the other ranks fail with [`ErrorKind::PeerGone`](crate::ErrorKind::PeerGone), and the error names this rank. The
    /// tensors of an operation that was in progress are lost.
    ///
    /// # Errors
    /// The backend cannot abort; the group is then unusable on this rank only.
    pub fn abort(&self) -> Result<()> {
        self.inner.abort()
    }

    /// Returns a handle for a thread that watches this one, which may be in a wait.
    pub fn aborter(&self) -> Aborter {
        Aborter(Arc::downgrade(&self.inner))
    }
}

/// Aborts a group from any thread; it does not keep the group alive.
#[derive(Clone, Debug)]
pub struct Aborter(Weak<Inner>);

impl Aborter {
    /// As [`ProcessGroup::abort`]; does nothing if the group is gone.
    ///
    /// # Errors
    /// The backend cannot abort; the group is then unusable on this rank only.
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

// Records of a group's calls: their number and bytes, the calls themselves, and their state in the rank's report.

/// A number of operations and the bytes of the tensors that a rank has passed to them. An all-reduce of S bytes counts S,
/// regardless of how its algorithm moves them. Sends count; receives and the comparison of calls do not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Operations.
    pub calls: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Sub for Traffic {
    type Output = Self;

    /// The operations and bytes since `earlier`.
    fn sub(self, earlier: Self) -> Self {
        Traffic { calls: self.calls - earlier.calls, bytes: self.bytes - earlier.bytes }
    }
}

impl ProcessGroup {
    /// The operations of this rank in the group so far and their bytes, whether the training loop, a [`Reducer`](crate::Reducer) or
    /// a layer called them. `None` with NCCL, whose calls are not counted; with two other backends, only the traffic of
    /// [`backend`](Self::backend).
    pub fn traffic(&self) -> Option<Traffic> {
        self.inner.traffic()
    }

    /// Records this rank's calls in all groups of the job from now on, and forgets earlier ones. From then on, a receive fills its
    /// floating-point memory with NaN until the message arrives, which exposes code that reads it too early.
    pub fn record_calls(&self) {
        if let Some(reporter) = &self.inner.job.reporter {
            reporter.record_calls();
        }
    }

    pub(crate) fn is_recording(&self) -> bool {
        self.inner.job.reporter.as_ref().is_some_and(Reporter::is_recording)
    }

    /// The calls since [`record_calls`](Self::record_calls). A pass of a [`Reducer`](crate::Reducer) is one call, whatever it
    /// exchanges. Without desync reports there are none.
    pub fn called(&self) -> Vec<Called> {
        self.inner.job.reporter.as_ref().map(Reporter::called).unwrap_or_default()
    }

    /// How long this rank has waited for each rank in the group's collectives. `None` unless the ranks share memory, where each
    /// sees when the others arrive. In a group over several hosts, a rank sees only the ranks of its own host: the others have
    /// 0.
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
    /// `peer` is the other rank of a message, by its rank in this group.
    pub(crate) fn enter(&self, operation: &str, kind: CallKind, peer: Option<Rank>) -> Option<Entry> {
        let peer = peer.and_then(|peer| self.job_rank(peer));
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

    /// Adds the reports of other ranks that may be involved in the failure: for a message, the peer and the ranks that it waits for
    /// in turn; otherwise all ranks.
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
    /// NCCL connects in the first operation. Operations are queued on the GPU: [`Work::wait`](crate::Work::wait) returns
    /// when later work on the GPU will see the result. A failure or an expired timeout appears later and then, by libtorch's
    /// default, ends the process; with `TORCH_NCCL_BLOCKING_WAIT=1`, `wait` returns it as an error. Messages have no tags.
    /// NCCL's flight recorder is off unless `TORCH_FR_BUFFER_SIZE` is set.
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
    /// memory and one for GPUs, like Python's `init_process_group("cpu:gloo,cuda:nccl")`: see [`BackendConfig`]. Each operation
    /// then goes to the backend of its tensors' device, and a barrier to [`BackendConfig::default_backend`].
    ///
    /// # Errors
    /// The errors of [`ProcessGroup::gloo`]; with [`Backend::SharedMemory`] also `BadArgument` if the ranks cannot share memory,
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
        let recording = Recording::start(options.recording.as_deref(), rank);
        let job = Arc::new(JobState { store, rank, size, groups_made: AtomicU64::new(1), reporter, recording });
        Self::make(backends, "0".into(), size.ranks().collect(), rank, job, options)
    }

    fn make(
        asked: BackendConfig,
        name: String,
        members: Vec<Rank>,
        rank: Rank,
        job: Arc<JobState>,
        options: &GroupOptions,
    ) -> Result<ProcessGroup> {
        let size = WorldSize::new(members.len()).unwrap_or(WorldSize::ONE);
        let debug = options.debug.map_or_else(DebugLevel::from_env, Ok)?;
        // DETAIL has its own comparison, in which Python ranks take part.
        let compares = options.compares()? && debug != DebugLevel::Detail;
        let options = &GroupOptions { compare_calls: Some(options.compares()?), ..options.clone() };
        // The default group's store is `0/` itself; a subgroup's is below it, as in Python.
        let group_store = if name == "0" { None } else { Some(job.store.prefix(&format!("{name}/"))?) };
        let store = group_store.as_ref().unwrap_or(&job.store);
        let member = MemberConfig { store, name: &name, members: &members, rank, options };
        let own = own_keys(store, asked)?;
        let connect = || {
            announce(&own, rank)?;
            if options.desync_report && !asked.connects_at_once() {
                wait_for_members(&member, &own, size)?;
            }
            asked.connect(&member, debug == DebugLevel::Detail, compares)
        };
        let join = || match &job.reporter {
            Some(reporter) => reporter.while_joining(&name, &members, connect),
            None => connect(),
        };
        let connected = match &job.recording {
            Some(recording) => recording.while_joining(&name, &members, join),
            None => join(),
        };
        let connected = connected.map_err(|error| explain_absence(error.at_rank(rank), &own, size))?;
        let Connected { group, backends, why } = connected;
        let handle = OwnedGroup::new(group);
        // SAFETY: the group is alive.
        let arrivals = unsafe { Arrivals::of(handle.group.as_ptr(), size) };
        if let Some((reporter, arrivals)) = job.reporter.as_ref().zip(arrivals).filter(|_| name == "0") {
            reporter.attach(arrivals);
        }
        let options = options.clone();
        let set_timeout = Mutex::new(None);
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
            set_timeout,
            debug,
            aborted,
        };
        Ok(ProcessGroup { inner: Arc::new(inner), timeout: Cell::new(None) })
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

// Groups of some of the job's ranks.

impl ProcessGroup {
    /// Creates a group of some of the job's ranks on this group's backend. The ranks are sorted first, as in Python's
    /// `new_group`. **Every** rank of the job must call it, in the same order; ranks outside the new group get `None`.
    ///
    /// # Errors
    /// As [`ProcessGroup::gloo`]; `BadArgument` for a rank outside the job or named twice.
    pub fn new_group(&self, ranks: &[Rank], options: &GroupOptions) -> Result<Option<ProcessGroup>> {
        self.new_group_on(self.inner.asked, ranks, options)
    }

    /// As [`new_group`](Self::new_group), on its own backend or backends.
    ///
    /// # Errors
    /// As [`new_group`](Self::new_group).
    pub fn new_group_on(
        &self,
        backends: impl Into<BackendConfig>,
        ranks: &[Rank],
        options: &GroupOptions,
    ) -> Result<Option<ProcessGroup>> {
        let job = Arc::clone(&self.inner.job);
        let mut members = ranks.to_vec();
        members.sort_unstable();
        members.dedup();
        let bad = |detail: String| Err(Error::bad_argument("new_group", detail).at_rank(job.rank));
        if members.is_empty() {
            return bad("a group needs at least one rank".into());
        }
        if members.len() != ranks.len() {
            return bad(format!("a rank occurs twice in {}", list(ranks)));
        }
        if let Some(&outsider) = members.iter().find(|&&rank| !job.size.contains(rank)) {
            return bad(format!("rank {outsider} is outside a world of {}", job.size));
        }
        // The default group is number 0. Every rank counts every group, so all agree on names.
        let name = job.groups_made.fetch_add(1, Ordering::Relaxed).to_string();
        let Some(position) = members.iter().position(|&rank| rank == job.rank) else { return Ok(None) };
        let parent = &self.inner.options;
        let options = GroupOptions {
            debug: options.debug.or(Some(self.inner.debug)),
            compare_calls: options.compare_calls.or(parent.compare_calls),
            simulated_host: options.simulated_host.clone().or_else(|| parent.simulated_host.clone()),
            ..options.clone()
        };
        let backends = backends.into();
        backends.prepare().map_err(|error| error.at_rank(job.rank))?;
        Self::make(backends, name, members, Rank::new(position), job, &options).map(Some)
    }

    /// Divides the group's ranks among new groups, and returns this rank's; PyTorch's `split_group`. `parts` lists each group's ranks
    /// in the job; no rank may be in two parts. **Every** rank of the job must call it with the same parts; a rank in none of them
    /// gets `None`.
    ///
    /// # Errors
    /// As [`new_group`](Self::new_group); `BadArgument` for a rank in two parts.
    ///
    /// # Examples
    /// Four ranks as a grid of two rows:
    /// ```no_run
    /// # fn row(group: &c10d::ProcessGroup) -> c10d::Result<c10d::ProcessGroup> {
    /// let rows = [[0, 1], [2, 3]].map(|row| row.map(c10d::Rank::new).to_vec());
    /// let row = group.split_group(&rows, group.options())?;
    /// # Ok(row.expect("each rank is in a row")) }
    /// ```
    pub fn split_group(&self, parts: &[Vec<Rank>], options: &GroupOptions) -> Result<Option<ProcessGroup>> {
        let mut all = parts.concat();
        all.sort_unstable();
        if let Some(twice) = all.windows(2).find(|pair| pair[0] == pair[1]) {
            let detail = format!("rank {} occurs twice in the parts", twice[0]);
            return Err(Error::bad_argument("split_group", detail).at_rank(self.rank()));
        }
        let mut own = None;
        for part in parts {
            own = self.new_group(part, options)?.or(own);
        }
        Ok(own)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::desync_report::CallKind;

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

    #[test]
    fn leaving_the_default_group_of_one_backend_does_not_affect_another_backend() {
        let (store, world) = (Store::hash().unwrap(), WorldSize::new(2).unwrap());
        let reporter = |backend: Backend, rank| {
            Reporter::start(&own_keys(&store, backend.into()).unwrap(), Rank::new(rank), world).unwrap()
        };
        let (gloo, nccl) = (reporter(Backend::Gloo, 1), Backend::Nccl { device: 0 });
        gloo.leave_group("0");
        let [ours, _theirs] = [reporter(nccl, 0), reporter(nccl, 1)];
        let entry = ours.enter("0", &[], "all_reduce", CallKind::Collective, None);
        let text = ours.report(entry, "Timeout", "0", &[Rank::ZERO, Rank::new(1)]).to_string();
        assert!(text.contains("rank 1 was outside any collective, after 0 finished calls"), "{text}");
    }
}
