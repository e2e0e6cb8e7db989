//! What a rank has before your functions are called. You do not change this file.

use std::time::Duration;

use anyhow::Result;
use c10d::{Store, TcpStoreOptions};
use lockstep::LaunchEnv;
use lockstep_gpu::{Comm, Gpu, UniqueId};

/// How long the store waits for a key.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A rank with its device and the job's store.
pub struct Job {
    pub rank: usize,
    pub size: usize,
    pub store: Store,
    pub gpu: Gpu,
}

impl Job {
    pub fn from_env() -> Result<Self> {
        let env = LaunchEnv::from_env()?;
        let options = TcpStoreOptions { timeout: TIMEOUT, ..TcpStoreOptions::default() };
        let store = Store::tcp(&env.master_addr, env.master_port, &options)?;
        let gpu = Gpu::open(env.local_rank.get())?;
        Ok(Job { rank: env.rank.get(), size: env.world_size.get(), store, gpu })
    }

    /// A communicator of all ranks. Each needs a name of its own.
    pub fn comm(&self, name: &str) -> Result<Comm> {
        let key = format!("job/{name}");
        if self.rank == 0 {
            self.store.set(&key, UniqueId::new()?.bytes())?;
        }
        let id = UniqueId::from_bytes(&self.store.get(&key)?);
        let id = id.ok_or_else(|| anyhow::anyhow!("{key} is no unique id"))?;
        Ok(Comm::join(&self.gpu, &id, self.rank, self.size)?)
    }
}
