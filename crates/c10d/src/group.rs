//! Process groups: making them, naming them as Python does, and taking subgroups.
//!
//! Leaves out what a group does: `collectives.rs` and `p2p.rs`.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::error::{Error, Fault, Result};
use crate::ffi::{self, Bytes, GroupHandle};
use crate::roll_call::{Roll, Ticket};
use crate::store::millis;
use crate::{Rank, Store, WorldSize};

/// c10d's default for Gloo (Backend.hpp, `kBackendDefaultTimeout`): 30 minutes.
pub const DEFAULT_GROUP_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// How much c10d checks; as `TORCH_DISTRIBUTED_DEBUG`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DebugLevel {
    /// Nothing beyond the operations themselves.
    #[default]
    Off,
    /// More words in libtorch's own messages.
    Info,
    /// Before each collective the ranks compare what they are about to call; a difference becomes a `Mismatch` that names
    /// the ranks and both calls, instead of a hang or wrong numbers.
    Detail,
}

impl DebugLevel {
    /// Reads `TORCH_DISTRIBUTED_DEBUG`; unset means `Off`.
    ///
    /// # Errors
    /// `BadArgument` for anything but OFF, INFO and DETAIL, in any case.
    pub fn from_env() -> Result<Self> {
        match std::env::var("TORCH_DISTRIBUTED_DEBUG") {
            Ok(value) => Self::parse(&value),
            Err(_) => Ok(DebugLevel::Off),
        }
    }

    fn parse(value: &str) -> Result<Self> {
        match value.to_ascii_uppercase().as_str() {
            "" | "OFF" => Ok(DebugLevel::Off),
            "INFO" => Ok(DebugLevel::Info),
            "DETAIL" => Ok(DebugLevel::Detail),
            _ => Err(Error::bad_argument(
                "read TORCH_DISTRIBUTED_DEBUG",
                format!("{value:?} is none of OFF, INFO and DETAIL"),
            )),
        }
    }
}

/// Where Gloo listens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Endpoint {
    /// `GLOO_SOCKET_IFNAME` if set (several with commas), else the address that this host's name resolves to, else loopback.
    #[default]
    Default,
    /// The address of a network interface, such as `lo` or `hsn0`.
    Interface(String),
    /// A host name or address of this machine.
    Host(String),
}

/// How to make a group.
#[derive(Clone, Debug)]
pub struct GroupOptions {
    /// Deadline of every operation that does not bring its own, and of connecting.
    pub timeout: Duration,
    /// Where Gloo listens.
    pub endpoint: Endpoint,
    /// How much to check; `None` asks `TORCH_DISTRIBUTED_DEBUG`, and in a subgroup takes the parent's.
    pub debug: Option<DebugLevel>,
    /// Whether the ranks keep a roll, so that errors say where the others are. Ranks of other programs do not answer it.
    pub roll_call: bool,
}

impl Default for GroupOptions {
    fn default() -> Self {
        GroupOptions { timeout: DEFAULT_GROUP_TIMEOUT, endpoint: Endpoint::Default, debug: None, roll_call: true }
    }
}

/// Some processes that communicate: this rank's end of it.
///
/// All ranks must make the same calls in the same order. c10d asks for one thread per group, so this type is `Send` but not
/// `Sync`.
#[derive(Debug)]
pub struct ProcessGroup {
    inner: Arc<Inner>,
    not_sync: PhantomData<Cell<()>>,
}

/// What outlives the `ProcessGroup` as long as an operation is under way.
#[derive(Debug)]
pub(crate) struct Inner {
    handle: Handle,
    name: String,
    rank: Rank,
    size: WorldSize,
    /// The members' ranks in the whole job, in group order.
    members: Vec<Rank>,
    job: Arc<Job>,
    options: GroupOptions,
    debug: DebugLevel,
}

/// What all groups of a job share.
#[derive(Debug)]
struct Job {
    /// The store below `default_pg` and `0/`.
    store: Store,
    rank: Rank,
    size: WorldSize,
    /// Names of subgroups are numbers in the order of their making, members or not.
    groups_made: AtomicU64,
    roll: Option<Roll>,
}

#[derive(Debug)]
struct Handle(NonNull<GroupHandle>);

// SAFETY: a c10d process group is not tied to the thread that made it; it asks only that its operations are issued in one
// order, which `ProcessGroup` not being Sync keeps.
unsafe impl Send for Handle {}
// SAFETY: `Inner` is shared by operations under way, which only read plain fields of it and free the handle when the last is
// gone; calls that issue operations go through `ProcessGroup`, which is not Sync.
unsafe impl Sync for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle came from the shim and is freed once.
        unsafe { ffi::lc_group_free(self.0.as_ptr()) };
    }
}

impl ProcessGroup {
    /// Joins the default group of a job on Gloo: blocks until all `size` ranks have come.
    ///
    /// Names and store prefixes are those of Python's `init_process_group("gloo")` (`default_pg`, `0/`, `cpu/`), so that
    /// Python ranks and Rust ranks can sit in one group.
    ///
    /// # Errors
    /// `BadArgument` for a rank outside the world or an unknown interface, `Timeout` naming the ranks that did not come,
    /// `PeerGone` when the store or a rank cannot be reached.
    pub fn gloo(store: &Store, rank: Rank, size: WorldSize, options: &GroupOptions) -> Result<Self> {
        if !size.contains(rank) {
            return Err(Error::bad_argument("init_process_group", format!("rank {rank} is outside a world of {size}")));
        }
        let store = store.prefix("default_pg")?.prefix("0/")?;
        let roll = options.roll_call.then(|| Roll::start(&store, rank, size)).transpose()?;
        let job = Arc::new(Job { store, rank, size, groups_made: AtomicU64::new(1), roll });
        Self::make("0".into(), size.ranks().collect(), rank, job, options)
    }

    /// Makes a group of some of the job's ranks, which are sorted first, as Python's `new_group` does. **Every** rank of
    /// the job must call it, in the same order; those outside get `None`.
    pub fn new_group(&self, ranks: &[Rank], options: &GroupOptions) -> Result<Option<ProcessGroup>> {
        let job = Arc::clone(&self.inner.job);
        let mut members = ranks.to_vec();
        members.sort_unstable();
        members.dedup();
        let bad = |detail: String| Err(Error::bad_argument("new_group", detail).at_rank(job.rank));
        if members.is_empty() {
            return bad("a group needs at least one rank".into());
        }
        if members.len() != ranks.len() {
            return bad(format!("a rank stands twice in {}", list(ranks)));
        }
        if let Some(&stranger) = members.iter().find(|&&rank| !job.size.contains(rank)) {
            return bad(format!("rank {stranger} is outside a world of {}", job.size));
        }
        // The default group is number 0; every rank counts every group, so that names agree.
        let name = job.groups_made.fetch_add(1, Ordering::Relaxed).to_string();
        let Some(position) = members.iter().position(|&rank| rank == job.rank) else { return Ok(None) };
        let options = GroupOptions { debug: options.debug.or(Some(self.inner.debug)), ..options.clone() };
        Self::make(name, members, Rank::new(position), job, &options).map(Some)
    }

    fn make(
        name: String,
        members: Vec<Rank>,
        rank: Rank,
        job: Arc<Job>,
        options: &GroupOptions,
    ) -> Result<ProcessGroup> {
        let size = WorldSize::new(members.len()).unwrap_or(WorldSize::ONE);
        let debug = options.debug.map_or_else(DebugLevel::from_env, Ok)?;
        // SAFETY: takes a number and has no other effect than on c10d's own level.
        unsafe { ffi::lc_set_debug_level(debug as i32) };
        // The default group's store is `0/` itself; a subgroup's lies beneath it, as in Python.
        let group_store = if name == "0" { None } else { Some(job.store.prefix(&format!("{name}/"))?) };
        let group_store = group_store.as_ref().unwrap_or(&job.store);
        let handle = connect(group_store, &name, &members, rank, size, options, debug)
            .map_err(|error| explain_absence(error.at_rank(rank), group_store, size))?;
        let inner = Inner { handle, name, rank, size, members, job, options: options.clone(), debug };
        Ok(ProcessGroup { inner: Arc::new(inner), not_sync: PhantomData })
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

    /// The group's name: `0` for the default group, then numbers in the order of making.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Deadline of every operation that does not bring its own.
    pub fn timeout(&self) -> Duration {
        self.inner.options.timeout
    }

    /// How much is checked before each collective.
    pub fn debug_level(&self) -> DebugLevel {
        self.inner.debug
    }

    /// The job's store, below the default group's prefix: for small agreements between ranks. Keys that begin with
    /// `lockstep/` are the binding's own.
    pub fn store(&self) -> &Store {
        &self.inner.job.store
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    pub(crate) fn as_ptr(&self) -> *mut GroupHandle {
        self.inner.handle.0.as_ptr()
    }
}

impl Inner {
    pub(crate) fn rank(&self) -> Rank {
        self.rank
    }

    pub(crate) fn enter(&self, operation: &str) -> Option<Ticket> {
        self.job.roll.as_ref().map(|roll| roll.enter(&self.name, operation))
    }

    pub(crate) fn leave(&self, ticket: Ticket) {
        if let Some(roll) = &self.job.roll {
            roll.leave(ticket);
        }
    }

    /// Adds what the other ranks say, where others can have a part in the failure.
    pub(crate) fn explain(&self, error: Error, ticket: Ticket) -> Error {
        match &self.job.roll {
            Some(roll) if error.fault() == Fault::BadArgument || self.size == WorldSize::ONE => {
                roll.leave(ticket);
                error
            }
            Some(roll) => {
                let why = format!("{:?}", error.fault());
                error.with_roll_call(roll.call(ticket, &why, &self.members))
            }
            None => error,
        }
    }
}

/// Gloo's full mesh among the members, over the backend's own part of the store.
fn connect(
    store: &Store,
    name: &str,
    members: &[Rank],
    rank: Rank,
    size: WorldSize,
    options: &GroupOptions,
    debug: DebugLevel,
) -> Result<Handle> {
    let begun = Instant::now();
    let backend_store = store.prefix("cpu/")?;
    announce(store, rank)?;
    let operation = || format!("connect process group {name} of {size} ranks");
    let global: Vec<u64> = members.iter().map(|rank| rank.get() as u64).collect();
    let (rank_number, size_number) = (to_i32(rank.get(), &operation)?, to_i32(size.get(), &operation)?);
    let fail = |exception| Error::new(operation(), exception).after(begun.elapsed());
    // SAFETY: the store handle outlives the call (the group takes its own reference); `out` is ours to be written.
    let handle = ffi::made(|out| unsafe { ffi::lc_group_new(store.as_ptr(), rank_number, size_number, out) })
        .map(Handle)
        .map_err(fail)?;
    let (interface, host) = match &options.endpoint {
        Endpoint::Default => ("", ""),
        Endpoint::Interface(name) => (name.as_str(), ""),
        Endpoint::Host(name) => ("", name.as_str()),
    };
    // SAFETY: handle, store, strings and the list of ranks outlive the call; the shim copies what it keeps.
    let status = unsafe {
        ffi::lc_group_add_gloo(
            handle.0.as_ptr(),
            backend_store.as_ptr(),
            Bytes::new(name.as_bytes()),
            Bytes::new(interface.as_bytes()),
            Bytes::new(host.as_bytes()),
            millis(options.timeout),
            global.as_ptr(),
            global.len(),
            debug == DebugLevel::Detail,
        )
    };
    status.check().map_err(fail)?;
    Ok(handle)
}

fn present_key(rank: Rank) -> String {
    format!("lockstep/present/{rank}")
}

/// Leaves a note in the store that this rank is there, for the message of those who wait in vain.
fn announce(store: &Store, rank: Rank) -> Result<()> {
    store.set(&present_key(rank), "1")
}

/// A group that does not come together: names the ranks that never announced themselves.
fn explain_absence(error: Error, store: &Store, size: WorldSize) -> Error {
    if !matches!(error.fault(), Fault::Timeout | Fault::PeerGone) {
        return error;
    }
    let absent: Vec<Rank> =
        size.ranks().filter(|&rank| matches!(store.check(&[present_key(rank)]), Ok(false))).collect();
    if absent.is_empty() {
        return error;
    }
    let detail = format!("never came: {}: {}", list(&absent), error.detail());
    let explained = Error::with_fault(error.fault(), error.operation(), detail).after(error.elapsed());
    match error.rank() {
        Some(rank) => explained.at_rank(rank),
        None => explained,
    }
}

fn list(ranks: &[Rank]) -> String {
    let word = if ranks.len() == 1 { "rank" } else { "ranks" };
    let numbers: Vec<String> = ranks.iter().map(Rank::to_string).collect();
    format!("{word} {}", numbers.join(", "))
}

fn to_i32(n: usize, operation: &impl Fn() -> String) -> Result<i32> {
    i32::try_from(n).map_err(|_| Error::bad_argument(operation(), format!("{n} is more than c10d counts to")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_debug_levels_in_any_case_and_rejects_others() {
        assert_eq!(DebugLevel::parse("detail").unwrap(), DebugLevel::Detail);
        assert_eq!(DebugLevel::parse("").unwrap(), DebugLevel::Off);
        let error = DebugLevel::parse("VERBOSE").unwrap_err();
        assert_eq!(error.fault(), Fault::BadArgument);
        assert!(error.to_string().contains("OFF, INFO and DETAIL"), "{error}");
    }
}
