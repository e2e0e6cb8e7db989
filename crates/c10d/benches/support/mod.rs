//! What benches of several processes share, also those of `crates/lockstep`: ranks that follow rank 0 ([`fleet`]), and
//! ratios of things measured in turns ([`rounds`]).
#![allow(dead_code, unreachable_pub)] // each bench uses its part

pub mod fleet;
pub mod rounds;

/// A bench ends at the first failure, whatever it is.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
