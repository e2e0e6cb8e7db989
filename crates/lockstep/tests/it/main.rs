//! The integration tests of this package in one program: each further one would link libtorch again. Tests that measure their
//! own process, or start themselves as ranks, are separate.

#![allow(clippy::unwrap_used)] // a test may

mod amp;
mod batch_norm;
mod batch_norm_golden;
mod best;
mod common;
mod compress;
mod data_digits;
mod data_real_mnist;
mod ddp;
mod ddp_features;
mod ddp_golden;
mod fully_shard;
mod init_method;
mod join;
mod loader;
mod loader_workers;
mod memory;
mod mesh;
mod object_collectives;
mod optim;
mod optim_golden;
mod pace;
mod pipeline;
mod pretrained;
mod procs_threads;
mod resnet_golden;
mod resnet_python;
mod sampler;
mod sampler_golden;
mod schedule_golden;
mod snapshot;
mod snapshot_nodes;
mod snapshot_sharded;
mod tensor_parallel;
mod zero;
