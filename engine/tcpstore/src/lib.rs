#![doc = include_str!("../README.md")]
//!
//! # Modules
//!
//! The protocol is that of libtorch's default (libuv) server.
//!
//! - [`wire`]: the format of the messages. Pure: no sockets, no clock.
//! - [`server`]: the effect of the operations ([`server::Data`], [`server::Session`], both pure) and the sockets around
//!   them.
//! - [`client`]: an async client. Each operation has a deadline, and its error names the store and the elapsed time.
//!
//! Not here: rendezvous, leases and everything else that is built on a store, and PyTorch's `PrefixStore` (a client
//! gets the same effect with keys `prefix/key`).

#![warn(missing_docs)] // people read its documentation without the source

pub mod client;
pub mod server;
pub mod wire;

pub use client::{Client, ClientOptions, Error, Kind};
pub use server::{Peer, Refusal, Server, ServerOptions};
pub use wire::Limits;
