//! Safe Rust over libtorch's c10d.

mod rank;

pub use rank::{Rank, WorldSize};
