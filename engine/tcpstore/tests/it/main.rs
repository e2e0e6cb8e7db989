//! The integration tests of this package in one binary. Tests that measure their own process are in separate files.

#![allow(clippy::unwrap_used)] // a panic fails the test

mod client;
mod model;
mod procs_python;
#[path = "../support/mod.rs"]
mod support;
mod wire;
