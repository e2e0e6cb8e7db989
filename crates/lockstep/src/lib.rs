//! The training runtime that the labs import.
//!
//! Every module below does one thing of a training job; `labs/` shows them together.

pub mod checkpoint;
pub mod data;
mod ddp;
pub mod device;
pub mod env;
pub mod error_file;
pub mod exit;
mod group;
pub mod loader;
pub mod metrics;
pub mod models;
pub mod optim;
pub mod progress;
mod rank;
mod report;
pub mod sampler;
pub mod spawn;

pub use lockstep_events as events;

pub use ddp::{DdpOptions, DistributedDataParallel};
pub use env::LaunchEnv;
pub use error_file::record_error;
pub use group::init_process_group;
pub use rank::{LocalRank, Rank, WorldSize};
pub use report::Reporter;
pub use spawn::spawn;
