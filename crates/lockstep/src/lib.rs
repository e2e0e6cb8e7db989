//! The training runtime that the labs import.
//!
//! Every module below does one thing of a training job; `labs/` shows them together.

pub mod data;
mod ddp;
pub mod env;
pub mod events;
mod group;
pub mod loader;
pub mod optim;
pub mod progress;
mod rank;
pub mod sampler;
pub mod spawn;

pub use ddp::{DdpOptions, DistributedDataParallel};
pub use group::init_process_group;
pub use rank::{LocalRank, Rank, WorldSize};
