//! Helpers for benches with several processes, including those of `crates/lockstep`: ranks that follow rank 0
//! ([`process_set`]), and ratios of measurements that take turns ([`rounds`]).
#![allow(dead_code, unreachable_pub)] // each bench uses only a part

pub mod process_set;
pub mod rounds;

/// The first failure of any kind ends a bench.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
