#![doc = include_str!("../README.md")]
//!
//! # How it is made
//!
//! A C++ shim (`shim/`) exports libtorch's classes, and this crate adds ownership, types and errors. It computes and communicates itself
//! in three cases only: synchronized batch norm and the gradients of collectives, which PyTorch implements in Python, and a backend in
//! shared memory for ranks on one host (`shim/shm/`), which `shim/two_levels.cpp` combines with Gloo over several.
//!
//! | module | duty |
//! |---|---|
//! | `rank` | [`Rank`], [`WorldSize`] |
//! | `store` | [`Store`]: TCP, file, hash, prefix |
//! | `group` | [`ProcessGroup`]: joining, names, subgroups |
//! | `backend` | [`Backend`]: Gloo, shared memory or NCCL |
//! | `backend_config` | [`BackendConfig`]: which of them for the tensors of which device |
//! | `cuda`, `nccl` | loading libtorch's CUDA libraries and the shim's NCCL part on demand |
//! | `collectives`, `coalesced`, `sparse`, `p2p` | a group's operations |
//! | `tensors`, `sizes`, `in_use` | checks before an operation gets a tensor |
//! | `operation` | libtorch's handle of an operation, and how long its group lives |
//! | `work` | [`Work`]: an operation in progress, which owns its tensors |
//! | `reducer` | [`Reducer`]: gradient buckets for DDP |
//! | `hooks` | [`with_saved_tensors`], [`on_gradient`]: what autograd tells to Rust |
//! | `storage` | [`Storage`]: the memory of a tensor, and whether it is freed |
//! | `floats` | [`Floats`]: a tensor that is written in its own memory |
//! | `amp` | [`autocast`], [`unscale`]: mixed precision |
//! | `kernels` | [`use_deterministic_algorithms`], [`channels_last`], [`pin_memory`], [`peak_memory`], [`use_one_thread_here`] |
//! | [`fork`] | copies of a process that has loaded libtorch |
//! | `fused` | [`fused_sgd`], [`fused_adam`]: libtorch's optimizer kernels |
//! | `sync_batch_norm` | [`sync_batch_norm`]: batch normalization over the samples of all ranks |
//! | `autograd` | [`exchange`]: a collective and its gradient; [`checkpoint`]: a function computed again in the backward pass |
//! | `own_thread` | [`OwnThread`]: a group inside a layer |
//! | `desync_report`, `reporter` | [`DesyncReport`]: who is missing after a failure |
//! | `pace` | who is late to collectives, and why |
//! | `error` | [`Error`], [`ErrorKind`] |
//! | `end` | a process ends without libtorch's destructors |
//! | `callback`, `ffi` | the C boundary |

mod amp;
mod autograd;
mod backend;
mod backend_config;
mod callback;
mod coalesced;
mod collectives;
pub mod cuda;
mod desync_report;
mod end;
mod error;
mod ffi;
mod floats;
pub mod fork;
mod fused;
mod group;
mod hooks;
mod in_use;
mod kernels;
mod nccl;
mod operation;
mod options;
mod own_thread;
mod p2p;
pub mod pace;
mod rank;
mod reducer;
mod reporter;
mod sizes;
mod sparse;
mod storage;
mod store;
mod sync_batch_norm;
mod tensors;
mod work;

pub use amp::{autocast, unscale};
pub use autograd::{Exchange, backward_over, checkpoint, exchange};
pub use backend::Backend;
pub use backend_config::BackendConfig;
pub use coalesced::P2pOp;
pub use collectives::{ReduceOp, Splits};
pub use desync_report::DesyncReport;
pub use error::{Error, ErrorKind, Result};
pub use floats::Floats;
pub use fused::{AdamTensors, FusedAdam, FusedSgd, fused_adam, fused_sgd};
pub use group::{Aborter, Called, ProcessGroup, Traffic};
pub use hooks::{Pack, Unpack, add_grad, on_gradient, with_saved_tensors};
pub use kernels::{
    channels_last, is_channels_last, peak_memory, pin_memory, reset_peak_memory, to_channels_last,
    use_deterministic_algorithms, use_one_thread_here,
};
pub use lockstep_contract::desync_report::{Call, RankState};
pub use options::{DEFAULT_GROUP_TIMEOUT, DebugLevel, Endpoint, GroupOptions};
pub use own_thread::OwnThread;
pub use rank::{Rank, WorldSize};
pub use reducer::{
    BucketTime, CommHook, Reducer, ReducerOptions, backward, broadcast_coalesced, bucket_assignment, clear_grad,
    grad_enabled, verify_params,
};
pub use storage::{Storage, storage_bytes};
pub use store::{DEFAULT_STORE_TIMEOUT, Store, TcpStoreOptions};
pub use sync_batch_norm::{SyncBatchNorm, sync_batch_norm};
pub use work::{Receiving, Work};
