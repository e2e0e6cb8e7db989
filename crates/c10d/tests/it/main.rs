//! The integration tests of this package in one binary: each further one would link libtorch again. Tests that inspect
//! the libraries of their own process are in separate files.
//!
//! Tests of groups run on every backend of CPU tensors, one after the other.

#![allow(clippy::unwrap_used)] // a panic fails the test

mod abort;
mod background;
mod checkpoint;
mod coalesced;
mod collectives;
#[path = "../common/mod.rs"]
mod common;
mod end;
mod failures;
mod first_cause;
mod fused;
mod hosts;
mod mismatch;
mod mixed;
mod p2p;
mod pace;
mod procs_python;
mod reducer;
mod refusals;
mod soundness;
mod sparse;
mod store;
mod sync_batch_norm;

/// Tests of what only shared memory has.
#[path = "."]
mod shared_memory {
    use c10d::{Backend, ProcessGroup};

    fn ranks<T: Send>(n: usize, body: impl Fn(ProcessGroup) -> T + Send + Sync) -> Vec<T> {
        crate::common::ranks_on(Backend::SharedMemory, n, &crate::common::options(), body)
    }

    mod arrivals;
    mod in_place;
}
