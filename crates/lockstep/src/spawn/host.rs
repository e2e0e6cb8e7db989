//! Where the workers meet: an address, and whatever keeps it served while they run.
//!
//! Which store it is, is for whoever builds a [`Spawn`](super::Spawn) to say; [`Hosted::store`] is libtorch's.

use std::any::Any;

use anyhow::Context;

/// A rendezvous store that is open: workers find it by `MASTER_ADDR` and `MASTER_PORT`.
pub struct Hosted {
    pub(super) addr: String,
    pub(super) port: u16,
    _guard: Box<dyn Any>,
}

impl Hosted {
    /// The store at `addr:port`, served for as long as `guard` lives: until the last worker has ended.
    pub fn new(addr: impl Into<String>, port: u16, guard: impl Any) -> Self {
        Hosted { addr: addr.into(), port, _guard: Box::new(guard) }
    }

    /// A TCPStore of this process's own, on a free loopback port.
    ///
    /// # Errors
    /// When no port can be opened on loopback.
    pub fn store() -> anyhow::Result<Self> {
        let store = crate::group::host_store()?;
        let port = store.port().context("a TCPStore that hosts has a port")?;
        Ok(Hosted::new("127.0.0.1", port, store))
    }
}
