//! The server: [`Server`] for a process that hosts a store. Not here: the choice of the address, and what ranks write
//! into the store.
//!
//! [`Data`] (the effect of operations) and [`Session`] (one connection's protocol) are pure; sockets, threads and
//! deadlines are around them.

mod connection;
mod connection_id;
mod data;
mod handle;
mod holdings;
mod listener;
mod options;
mod session;
mod shared;
mod waiters;

pub use connection_id::ConnectionId;
pub use data::{Data, Outcome, Refused};
pub use handle::Server;
pub use options::Options;
pub use session::{Session, Turn, Violation};
pub use shared::{Peer, Refusal};
