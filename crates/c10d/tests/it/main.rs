//! The integration tests of this package in one binary: each further one would link libtorch again. Tests that inspect
//! the libraries of their own process are in separate files.
//!
//! Tests of groups run on every backend of CPU tensors.

#![allow(clippy::unwrap_used)] // a panic fails the test
#![allow(clippy::duplicate_mod)] // once for each backend

mod background;
mod checkpoint;
#[path = "../common/mod.rs"]
mod common;
mod fused;
mod hosts;
mod mixed;
mod procs_python;
mod refusals;
mod store;

/// What the tests of one backend use instead of `common`'s functions of the same names.
macro_rules! ranks_on {
    ($backend:expr) => {
        use c10d::{GroupOptions, ProcessGroup, Rank, Store, WorldSize};

        fn ranks<T: Send>(n: usize, body: impl Fn(ProcessGroup) -> T + Send + Sync) -> Vec<T> {
            ranks_with(n, &crate::common::options(), body)
        }

        fn ranks_with<T: Send>(
            n: usize,
            options: &GroupOptions,
            body: impl Fn(ProcessGroup) -> T + Send + Sync,
        ) -> Vec<T> {
            crate::common::ranks_on($backend, n, options, body)
        }

        fn join(store: &Store, rank: Rank, size: WorldSize, options: &GroupOptions) -> c10d::Result<ProcessGroup> {
            crate::common::join_on($backend, store, rank, size, options)
        }
    };
}

#[path = "."]
mod gloo {
    ranks_on!(c10d::Backend::Gloo);

    mod abort;
    mod coalesced;
    mod collectives;
    mod failures;
    mod mismatch;
    mod p2p;
    mod pace;
    mod reducer;
    mod soundness;
    mod sparse;
    mod sync_batch_norm;
}

#[path = "."]
mod two_levels {
    ranks_on!(c10d::Backend::TwoLevels);

    mod abort;
    mod coalesced;
    mod collectives;
    mod failures;
    mod mismatch;
    mod p2p;
    mod pace;
    mod reducer;
    mod soundness;
    mod sparse;
    mod sync_batch_norm;
}

#[path = "."]
mod shared_memory {
    ranks_on!(c10d::Backend::SharedMemory);

    mod abort;
    mod arrivals;
    mod coalesced;
    mod collectives;
    mod failures;
    mod first_cause;
    mod in_place;
    mod mismatch;
    mod p2p;
    mod pace;
    mod reducer;
    mod soundness;
    mod sparse;
    mod sync_batch_norm;
}
