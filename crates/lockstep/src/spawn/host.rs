//! Where the workers meet: an address, and whatever keeps it served while they run.
//!
//! Opening a store is not done here; whoever builds a [`Spawn`](super::Spawn) passes the opening in.

use std::any::Any;

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
}
