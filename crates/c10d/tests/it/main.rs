//! The integration tests of this package in one program: each further one would link libtorch once more. What looks at the libraries
//! of its own process stands beside it.

#![allow(clippy::unwrap_used)] // a test may

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
