//! The client: every operation of a store, each with a deadline. Not here: rendezvous, and prefixes for keys.
//!
//! A client uses one connection for operations that the server answers immediately and opens others for waits, because
//! a waiting connection can carry nothing else. So several tasks can share a client without blocking each other.
//! Dropping a future closes its connection and does not affect the others.

mod calls;
mod connection;
mod error;
mod operations;

pub use error::{Error, Kind};
pub use operations::{Client, ClientOptions};
