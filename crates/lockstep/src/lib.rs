//! The training runtime that the labs import.
//!
//! Every module below does one thing of a training job; `labs/` shows them together.

pub mod data;
pub mod env;
pub mod events;
pub mod loader;
pub mod optim;
pub mod progress;
mod rank;
pub mod sampler;
pub mod spawn;

pub use rank::{LocalRank, Rank, WorldSize};
