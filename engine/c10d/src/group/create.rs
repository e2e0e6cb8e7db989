//! Joining a group. Its backends connect once all ranks have arrived; the error names ranks that never do.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use tch::Device;

use crate::connect::{Connected, MemberConfig};
use crate::error::{Error, ErrorKind, Result};
use crate::group::{Inner, JobState, ProcessGroup};
use crate::lifetime::OwnedGroup;
use crate::options::{DebugLevel, GroupOptions};
use crate::reporter::Reporter;
use crate::stragglers::Arrivals;
use crate::{Backend, BackendConfig, Rank, Store, WorldSize};

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
        let job = Arc::new(JobState { store, rank, size, groups_made: AtomicU64::new(1), reporter });
        Self::make(backends, "0".into(), size.ranks().collect(), rank, job, options)
    }

    pub(super) fn make(
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
        let connected = match &job.reporter {
            Some(reporter) => reporter.while_joining(&name, &members, connect),
            None => connect(),
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

pub(super) fn list(ranks: &[Rank]) -> String {
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
