#![doc = include_str!("../README.md")]
//!
//! # How it works
//!
//! A C++ shim (`shim/`) exports libtorch's classes, and this crate adds ownership, types and errors. It computes and communicates itself
//! in three cases only: synchronized batch norm and the gradients of collectives, which PyTorch implements in Python, and a backend in
//! shared memory for ranks on one host (`shim/shm/`), which `shim/two_levels.cpp` combines with Gloo over several.
//!
//! | module | duty |
//! |---|---|
//! | `rank` | [`Rank`], [`WorldSize`] |
//! | `options` | [`GroupOptions`] |
//! | `store` | [`Store`]: TCP, file, hash, prefix |
//! | `group` | [`ProcessGroup`]: joining, names, subgroups, abort |
//! | `backend` | [`Backend`]: Gloo, shared memory or NCCL; [`BackendConfig`]: which of them for the tensors of which device |
//! | `cuda` | loading libtorch's CUDA libraries and the shim's NCCL part on demand |
//! | `collectives`, `p2p` | a group's operations |
//! | `tensors` | checks before an operation gets a tensor; [`Storage`]: whether the memory of a tensor is freed; [`Floats`]: a tensor that is written in its own memory |
//! | `work` | [`Work`]: an operation in progress, which owns its tensors |
//! | `lifetime` | when libtorch's operations and groups, and the memory that they use, are freed |
//! | `reducer` | [`Reducer`]: gradient buckets for DDP |
//! | `autograd` | [`exchange`]: a collective and its gradient; [`sync_batch_norm`]; [`checkpoint`]: a function computed again in the backward pass; [`with_saved_tensors`], [`on_gradient`]: callbacks from autograd into Rust |
//! | `kernels` | [`autocast`], [`fused_adam`], [`channels_last`] and others: kernels of libtorch that tch does not export |
//! | [`process`] | copies of a process that has loaded libtorch, its end without libtorch's destructors; [`OwnThread`] |
//! | `desync_report` | [`DesyncReport`]: who is missing after a failure |
//! | [`stragglers`] | who is late to collectives, and why |
//! | `error` | [`Error`], [`ErrorKind`] |
//! | `ffi` | the C boundary |

mod autograd;
mod backend;
mod collectives;
pub mod cuda;
mod desync_report;
mod error;
mod ffi;
mod group;
mod kernels;
mod lifetime;
mod options;
mod p2p;
pub mod process;
mod rank;
mod recording;
mod reducer;
mod store;
pub mod stragglers;
mod tensors;
mod work;

pub use autograd::{
    Exchange, Pack, SyncBatchNorm, Unpack, add_grad, all_to_all_single, backward_over, checkpoint, exchange,
    on_gradient, sync_batch_norm, with_saved_tensors,
};
pub use backend::{Backend, BackendConfig};
pub use collectives::{ReduceOp, Splits};
pub use desync_report::Called;
pub use error::{DesyncReport, Error, ErrorKind, Result, from_caller};
pub use group::{Aborter, ProcessGroup, Traffic};
pub use kernels::{
    AdamTensors, FusedAdam, FusedSgd, autocast, channels_last, cpu_capability, fused_adam, fused_sgd, is_channels_last,
    peak_memory, pin_memory, reset_peak_memory, to_channels_last, unscale, use_deterministic_algorithms,
    use_one_thread_here,
};
pub use lockstep_contract::desync_report::{Call, RankState};
pub use options::{DEFAULT_GROUP_TIMEOUT, DebugLevel, Endpoint, GroupOptions};
pub use p2p::P2pOp;
#[doc(inline)]
pub use process::OwnThread;
pub use rank::{Rank, WorldSize};
pub use reducer::{
    BucketTime, CommHook, Reducer, ReducerOptions, backward, broadcast_coalesced, bucket_assignment, clear_grad,
    grad_enabled, verify_params,
};
pub use store::{DEFAULT_STORE_TIMEOUT, Store, TcpStoreOptions};
pub use tensors::{Floats, Storage, storage_bytes};
pub use work::{Receiving, Work};
