//! A rank with its device, and the store in which ranks meet.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use c10d::{Store, TcpStoreOptions};
use lockstep::LaunchEnv;
use lockstep_gpu::{Comm, Gpu, Kind, UniqueId};

/// How long the store waits for a key, and for the ranks.
const TIMEOUT: Duration = Duration::from_secs(120);

pub(crate) struct Job {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) kind: Kind,
    pub(crate) gpu: Gpu,
    restarts: u32,
    store: Store,
}

impl Job {
    /// One device for each rank of the node, by local rank.
    pub(crate) fn new(env: &LaunchEnv, kind: Kind) -> Result<Self> {
        let (there, ranks) = (Gpu::count()?, env.local_world_size.get());
        if ranks > there {
            bail!(
                "{ranks} ranks on this node but {there} {kind}s: start --nproc-per-node={there}, NCCL refuses two ranks on one device"
            );
        }
        let hosts = env.rank.is_zero() && !env.agent_store;
        let wait_for = Some(env.world_size.get());
        let options = TcpStoreOptions { host_server: hosts, wait_for, timeout: TIMEOUT, multi_tenant: hosts };
        let store = Store::tcp(&env.master_addr, env.master_port, &options)?;
        let gpu = Gpu::open(env.local_rank.get())?;
        let (rank, size, restarts) = (env.rank.get(), env.world_size.get(), env.restart_count);
        Ok(Job { rank, size, kind, gpu, restarts, store })
    }

    // ANCHOR: comm
    /// A communicator of all ranks. The store carries the unique id; a restarted job needs keys of its own.
    pub(crate) fn comm(&self, name: &str) -> Result<Comm> {
        let key = format!("nccl/{}/{name}", self.restarts);
        if self.rank == 0 {
            self.store.set(&key, UniqueId::new()?.bytes())?;
        }
        let id = UniqueId::from_bytes(&self.store.get(&key)?).with_context(|| format!("{key} is no unique id"))?;
        Ok(Comm::join(&self.gpu, &id, self.rank, self.size)?)
    }
    // ANCHOR_END: comm

    /// Prints a line on rank 0.
    pub(crate) fn say(&self, line: impl std::fmt::Display) {
        if self.rank == 0 {
            println!("{line}");
        }
    }
}
