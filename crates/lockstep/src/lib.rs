//! The training runtime that the labs import.
//!
//! Each module covers one part of a training job; `labs/` combines them.

pub mod accumulate;
pub mod amp;
pub mod best;
pub mod checkpoint;
pub mod compress;
pub mod curves;
pub mod data;
mod ddp;
pub mod device;
pub mod env;
pub mod exit;
mod faults;
mod fully_shard;
mod group;
pub mod loader;
pub mod loss;
pub mod measure;
pub mod memory;
pub mod metrics;
pub mod models;
pub mod nn;
mod nodes;
mod object_collectives;
pub mod optim;
pub mod padding;
pub mod parallel;
pub mod pretrained;
pub mod progress;
mod report;
pub mod results;
pub mod rng;
pub mod sampler;
pub mod snapshot;
pub mod spawn;
pub mod threads;
pub mod virtual_ranks;

pub use best::BestModel;
pub use ddp::{DdpOptions, DdpVariables, DistributedDataParallel, Outputs};
pub use env::{LaunchEnv, LocalRank, Rank, WorldSize};
pub use group::{JoinError, NobodyListens, init_process_group, init_process_group_at, init_process_group_on};
pub use lockstep_contract::{error_file, events};
pub use lockstep_paths as output;
pub use nodes::{Node, nodes};
pub use object_collectives::{ObjectError, all_gather_object, broadcast_object, broadcast_object_from};
pub use report::Reporter;
pub use spawn::spawn;
