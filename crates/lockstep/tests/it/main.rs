//! The integration tests of this package in one program: each further one would link libtorch again. Tests that measure their
//! own process, or start themselves as ranks, are separate.

#![allow(clippy::unwrap_used)] // a test may

mod amp;
mod batch_norm;
mod best;
mod common;
mod data;
mod ddp;
mod ddp_features;
mod ddp_golden;
mod fully_shard;
mod gpt;
mod loader;
mod optim;
mod optim_golden;
mod pace;
mod parallel;
mod pretrained;
mod procs_groups;
mod resnet_golden;
mod sequences;
mod snapshot;
mod snapshot_sharded;
mod virtual_ranks;
mod zero;
