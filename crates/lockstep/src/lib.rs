//! The training runtime that the labs import.
//!
//! Each module covers one part of a training job; `labs/` combines them.

pub mod amp;
pub mod best;
pub mod checkpoint;
pub mod compress;
mod confusion;
pub mod data;
mod ddp;
mod deterministic;
pub mod device;
pub mod env;
pub mod exit;
mod faults;
mod group;
mod init_method;
mod join;
pub mod loader;
pub mod loss;
pub mod measure;
pub mod memory;
mod mesh;
pub mod metrics;
pub mod models;
pub mod nn;
mod nodes;
mod object_collectives;
pub mod optim;
pub mod parallel;
pub mod pretrained;
pub mod progress;
mod rank;
mod report;
pub mod results;
pub mod rng;
pub mod sampler;
pub mod snapshot;
pub mod spawn;
pub mod threads;
mod wait_for_store;

pub use lockstep_contract::error_file;
pub use lockstep_events as events;
pub use lockstep_paths::output;

pub use best::BestModel;
pub use ddp::{DdpLoggingData, DdpOptions, DdpVariables, DistributedDataParallel, Outputs};
pub use env::LaunchEnv;
pub use group::{JoinError, init_process_group, init_process_group_on};
pub use init_method::init_process_group_at;
pub use join::JoinOptions;
pub use mesh::{DeviceMesh, MeshError, new_subgroups};
pub use nodes::{Node, nodes};
pub use object_collectives::{
    ObjectError, all_gather_object, broadcast_object, broadcast_object_from, gather_object, scatter_object,
};
pub use rank::{LocalRank, Rank, WorldSize};
pub use report::Reporter;
pub use spawn::spawn;
pub use wait_for_store::NobodyListens;
