//! The integration tests of this package in one binary, because each further one would link libtorch again. Tests that
//! inspect the libraries of their own process are in separate files.
//!
//! Tests of groups run on every backend of CPU tensors, one after the other.

#![allow(clippy::unwrap_used)] // a panic fails the test

mod abort;
mod collectives;
#[path = "../common/mod.rs"]
mod common;
mod failures;
mod hosts;
mod kernels;
mod mismatch;
mod p2p;
mod procs_python;
mod recording;
mod reducer;
mod shared_memory;
mod soundness;
mod store;
mod stragglers;
