//! Joining the job's process group, and the two stores that it takes: the worker's end and the launcher's.

use std::time::Duration;

use c10d::{Backend, DEFAULT_STORE_TIMEOUT, GroupOptions, ProcessGroup, Result, Store, TcpStoreOptions};

use tch::Device;

use crate::LaunchEnv;

/// Joins the default group as the environment says, as `init_process_group(init_method="env://")` does: connects to the
/// store at `MASTER_ADDR:MASTER_PORT`, hosting it on rank 0 unless the launcher does, and waits for all ranks.
///
/// The group is for tensors on `device`: over NCCL for a GPU where this crate was built with the feature `nccl`, else over Gloo,
/// which copies a GPU's tensors through host memory.
///
/// Rank and local rank are different types, so that the classical mistake of joining with `LOCAL_RANK` does not compile.
///
/// # Errors
/// `Timeout` and `PeerGone` name the store's address or the ranks that did not come.
pub fn init_process_group(env: &LaunchEnv, device: Device, options: &GroupOptions) -> Result<ProcessGroup> {
    let store = connect_store(env, options.timeout.min(DEFAULT_STORE_TIMEOUT))?;
    ProcessGroup::new(backend_for(device), &store, env.rank, env.world_size, options)
}

fn backend_for(device: Device) -> Backend {
    match device {
        Device::Cuda(device) if cfg!(feature = "nccl") => Backend::Nccl { device },
        _ => Backend::Gloo,
    }
}

/// This rank's end of the job's store.
fn connect_store(env: &LaunchEnv, timeout: Duration) -> Result<Store> {
    let hosts = env.rank.is_zero() && !env.agent_store;
    // As in Python, clients announce themselves and a host waits until all have.
    let wait_for = Some(env.world_size.get());
    let options = TcpStoreOptions { host_server: hosts, wait_for, timeout, multi_tenant: hosts };
    Store::tcp(&env.master_addr, env.master_port, &options)
}

/// A store on a free loopback port, for a launcher to keep open while its workers run.
pub(crate) fn host_store() -> Result<Store> {
    Store::tcp("127.0.0.1", 0, &TcpStoreOptions { host_server: true, ..TcpStoreOptions::default() })
}
