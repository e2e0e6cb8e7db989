//! Joins the job's process group: the worker's end and the launcher's end of the store.

use std::time::{Duration, Instant};

use c10d::{Backend, BackendConfig, DEFAULT_STORE_TIMEOUT, GroupOptions, ProcessGroup, Result, Store, TcpStoreOptions};
use lockstep_contract::{BACKEND, BACKENDS};
use lockstep_process::AGENT;
use tch::Device;

use crate::LaunchEnv;
use crate::events::{Event, EventSink};
use crate::wait_for_store::{self, NobodyListens};

/// Why joining the group failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// No store answered.
    #[error("failed to join the process group")]
    NobodyListens(#[from] NobodyListens),
    /// The store or another rank failed.
    #[error(transparent)]
    Group(#[from] c10d::Error),
}

/// Joins the default group as the environment says, like `init_process_group(init_method="env://")`: connects to the store at
/// `MASTER_ADDR:MASTER_PORT`, hosting it on rank 0 unless the launcher does, and waits for all ranks.
///
/// For tensors in host memory the ranks choose a backend ([`Backend::Auto`]): shared memory within a host, Gloo between hosts.
/// `LOCKSTEP_BACKEND` may name one, `shm` or `gloo`. If `device` is a GPU, the group also has NCCL for the tensors there, like
/// `cpu:gloo,cuda:nccl` in Python. A program that was built without NCCL ([`Backend::HAS_NCCL`]) has Gloo for both, which copies a
/// GPU's tensors through host memory. An event says which ones these are, and why.
///
/// Without a launcher, rank 0 prints to stderr what was taken from MPI's launcher or Slurm ([`LaunchEnv::source`]).
///
/// Rank and local rank are different types, so that the classic mistake of joining with `LOCAL_RANK` does not compile.
///
/// # Errors
/// [`JoinError::NobodyListens`] when no store answered before the deadline; stderr shows the wait meanwhile. `Timeout` and
/// `PeerGone` name the store's address or the missing ranks.
pub fn init_process_group(env: &LaunchEnv, device: Device, options: &GroupOptions) -> Result<ProcessGroup, JoinError> {
    init_process_group_on(backends_for(device)?, env, options)
}

/// As [`init_process_group`], on this backend, or one for each device ([`BackendConfig::parse`]).
///
/// # Errors
/// As there, and those of [`ProcessGroup::new`].
pub fn init_process_group_on(
    backends: impl Into<BackendConfig>,
    env: &LaunchEnv,
    options: &GroupOptions,
) -> Result<ProcessGroup, JoinError> {
    if let Some(source) = env.source().filter(|_| env.rank.is_zero()) {
        eprintln!("[rank 0] started without a launcher: {source}");
    }
    let store = connect_store(env, options.timeout.min(DEFAULT_STORE_TIMEOUT))?;
    // The store of `lockstep run` is empty at each start of its workers, so that their keys can be Python's.
    let ours = std::env::var_os(AGENT).is_some();
    let store = match attempt_prefix(env).filter(|_| !ours) {
        Some(prefix) => store.prefix(&prefix)?,
        None => store,
    };
    let group = ProcessGroup::new(backends, &store, env.rank, env.world_size, options)?;
    let (backend, reason) = (group.backends().to_string(), group.why_backend().map(str::to_owned));
    let joined = Event::Group { world_size: env.world_size.get(), backend, reason };
    EventSink::from_env(env.rank.get(), env.restart_count).emit(&joined);
    Ok(group)
}

/// The prefix that separates the keys of restarted workers from those of the previous attempt, where one is needed.
///
/// torchrun keeps one store for all attempts of a job. A restarted rank then finds the address of a dead one in it, and Gloo
/// gives up after a few refused connections; Python's `init_process_group("gloo")` has the same bug, up to and including 2.11.
/// The number of restarts identifies the attempt, but only among the workers of one agent, since each agent counts its own. So
/// on several nodes, and in a first attempt, the keys are Python's.
fn attempt_prefix(env: &LaunchEnv) -> Option<String> {
    let one_agent = env.local_world_size == env.world_size;
    (env.agent_store && env.restart_count > 0 && one_agent).then(|| format!("attempt_{}", env.restart_count))
}

pub(crate) fn backends_for(device: Device) -> Result<BackendConfig> {
    next_to(named(&std::env::var(BACKEND).unwrap_or_default())?, device)
}

/// `host` is the backend of host memory.
fn next_to(host: Backend, device: Device) -> Result<BackendConfig> {
    match device {
        Device::Cuda(device) if Backend::HAS_NCCL => BackendConfig::pair(host, Backend::Nccl { device }),
        Device::Cpu => Ok(host.into()),
        _ => Ok(Backend::Gloo.into()),
    }
}

fn named(name: &str) -> Result<Backend> {
    match name {
        "" => Ok(Backend::Auto),
        _ => Backend::of_host_memory(name).ok_or_else(|| {
            let detail = format!("{name:?} is none of {}", BACKENDS.join(", "));
            c10d::Error::bad_argument(format!("read {BACKEND}"), detail)
        }),
    }
}

/// This rank's end of the job's store.
fn connect_store(env: &LaunchEnv, timeout: Duration) -> Result<Store, JoinError> {
    let (hosts, begun) = (env.rank.is_zero() && !env.agent_store, Instant::now());
    if !hosts {
        wait_for_store::until_it_listens(env, timeout)?;
    }
    // The store does listen, so a second is enough to connect even if the wait took all the time.
    let timeout = timeout.saturating_sub(begun.elapsed()).max(timeout.min(Duration::from_secs(1)));
    // As in Python, clients announce themselves and a host waits for all of them.
    let wait_for = Some(env.world_size.get());
    let options = TcpStoreOptions { host_server: hosts, wait_for, timeout, multi_tenant: hosts };
    Ok(Store::tcp(&env.master_addr, env.master_port, &options)?)
}

/// A store on a free loopback port, which a launcher keeps open while its workers run.
pub(crate) fn host_store() -> Result<Store> {
    Store::tcp("127.0.0.1", 0, &TcpStoreOptions { host_server: true, ..TcpStoreOptions::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WorldSize;

    #[test]
    fn the_ranks_choose_the_backend_of_host_memory_unless_it_is_named() {
        assert_eq!(named("").unwrap().name(), "auto");
        assert_eq!(BACKENDS.map(|name| named(name).unwrap().name()), BACKENDS);
        assert!(named("nccl").unwrap_err().to_string().contains("\"nccl\" is none of auto, gloo, shm"));
    }

    #[test]
    fn a_gpu_has_nccl_next_to_the_backend_of_host_memory_where_the_program_has_it() {
        let backends = next_to(Backend::Auto, Device::Cuda(1)).unwrap().to_string();
        assert_eq!(backends, if Backend::HAS_NCCL { "cpu:auto,cuda:nccl" } else { "gloo" });
    }

    #[test]
    fn keeps_pythons_keys_except_for_restarted_workers_of_a_single_agent() {
        let two = WorldSize::new(2).unwrap();
        let one_node = LaunchEnv { world_size: two, local_world_size: two, agent_store: true, ..LaunchEnv::alone() };
        let restarted = LaunchEnv { restart_count: 3, ..one_node.clone() };
        assert_eq!(attempt_prefix(&restarted).as_deref(), Some("attempt_3"));
        assert_eq!(attempt_prefix(&one_node), None);
        assert_eq!(attempt_prefix(&LaunchEnv { agent_store: false, ..restarted.clone() }), None);
        assert_eq!(attempt_prefix(&LaunchEnv { local_world_size: WorldSize::ONE, ..restarted }), None);
    }
}
