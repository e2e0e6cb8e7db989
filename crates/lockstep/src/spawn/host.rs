//! The rendezvous store of the workers: its address, and the value that keeps it open while they run.
//!
//! The code that makes a [`Spawn`](super::Spawn) chooses the store; [`Hosted::store`] is libtorch's.

use std::any::Any;

use anyhow::Context;

/// An open rendezvous store, which workers find by `MASTER_ADDR` and `MASTER_PORT`.
pub struct Hosted {
    pub(super) addr: String,
    pub(super) port: u16,
    _guard: Box<dyn Any>,
}

impl Hosted {
    /// The store at `addr:port`. It is open while `guard` exists, which is until the last worker has ended.
    pub fn new(addr: impl Into<String>, port: u16, guard: impl Any) -> Self {
        Hosted { addr: addr.into(), port, _guard: Box::new(guard) }
    }

    /// A TCPStore in this process, on a free loopback port.
    ///
    /// # Errors
    /// No port can be opened on loopback.
    pub fn store() -> anyhow::Result<Self> {
        let store = crate::group::host_store()?;
        let port = store.port().context("a TCPStore that hosts has a port")?;
        Ok(Hosted::new("127.0.0.1", port, store))
    }
}
