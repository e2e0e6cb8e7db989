//! The integration tests of this package in one program; what measures its own process stands beside it.

#![allow(clippy::unwrap_used)] // a test may

mod client;
mod golden;
mod model;
mod procs_python;
#[path = "../support/mod.rs"]
mod support;
mod waiting;
mod wire;
