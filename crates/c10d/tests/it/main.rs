//! The integration tests of this package in one binary: each further one would link libtorch again. Tests that inspect
//! the libraries of their own process are in separate files.

#![allow(clippy::unwrap_used)] // a panic fails the test

mod collectives;
#[path = "../common/mod.rs"]
mod common;
mod failures;
mod fused;
mod mismatch;
mod p2p;
mod procs_python;
mod reducer;
mod soundness;
mod store;
mod sync_batch_norm;
