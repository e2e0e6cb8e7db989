//! The IDX format, in which MNIST and its relatives are published.

mod file;
mod guess;
#[cfg(test)]
mod tests;

pub use file::{Idx, Kind, MAX_BYTES};
