//! Server and client of PyTorch's TCPStore protocol (2.11), in pure Rust.
//!
//! A TCPStore is the small key-value service on which the ranks of a job find each other. This crate speaks the dialect of
//! libtorch's default (libuv) server, so that Python's and Rust's libtorch clients work against [`Server`], and [`Client`]
//! works against libtorch's server. It links no libtorch.
//!
//! - [`wire`]: what the bytes mean. Pure: no socket, no clock.
//! - [`server`]: what the operations do ([`server::Data`], [`server::Session`], both pure) and the sockets around them.
//! - [`client`]: an async client whose every operation has a deadline and an error that says where and after how long.
//!
//! Left out: rendezvous, leases and anything else that is built on a store, and PyTorch's `PrefixStore` (a client makes it by
//! writing `prefix/key`).

pub mod client;
pub mod server;
pub mod wire;

pub use client::{Client, ClientOptions, Error, Kind};
pub use server::{Options, Peer, Refusal, Server};
pub use wire::Limits;
