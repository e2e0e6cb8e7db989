//! Safe Rust over libtorch's distributed engine, c10d: stores, process groups over Gloo and NCCL, work handles, the DDP
//! reducer. Beside it the fused optimizer kernels, which tch lacks, and batch normalization over all ranks.
//!
//! Nothing here computes or communicates by itself, but for that normalization, which PyTorch has in Python. A C++ shim (`shim/`) makes libtorch's classes callable; this crate gives
//! them owners, types and errors. It is the one crate of the project that holds unsafe code.
//!
//! | module | duty |
//! |---|---|
//! | `rank` | [`Rank`], [`WorldSize`] |
//! | `store` | [`Store`]: TCP, file, hash, prefix |
//! | `group` | [`ProcessGroup`]: joining, names, subgroups |
//! | `backend` | [`Backend`]: Gloo or NCCL |
//! | `cuda`, `nccl` | loading libtorch's CUDA half and the shim's NCCL part, when they are asked for |
//! | `collectives`, `p2p` | what a group does |
//! | `tensors`, `sizes`, `in_use` | what is looked at before an operation gets a tensor |
//! | `work` | [`Work`]: an operation under way, which owns its tensors |
//! | `reducer` | [`Reducer`]: gradient buckets for DDP |
//! | `fused` | [`fused_sgd`], [`fused_adam`]: libtorch's optimizer kernels |
//! | `sync_batch_norm` | [`sync_batch_norm`]: batch normalization over the samples of all ranks |
//! | `own_thread` | [`OwnThread`]: how a layer holds a group |
//! | `desync_report`, `reporter` | [`DesyncReport`]: who is missing after a failure |
//! | `error` | [`Error`], [`Fault`] |
//! | `ffi` | the C boundary |

mod backend;
mod collectives;
pub mod cuda;
mod desync_report;
mod error;
mod ffi;
mod fused;
mod group;
mod in_use;
mod nccl;
mod options;
mod own_thread;
mod p2p;
mod rank;
mod reducer;
mod reporter;
mod sizes;
mod store;
mod sync_batch_norm;
mod tensors;
mod work;

pub use backend::Backend;
pub use collectives::{ReduceOp, Splits};
pub use desync_report::DesyncReport;
pub use error::{Error, Fault, Result};
pub use fused::{AdamTensors, FusedAdam, FusedSgd, fused_adam, fused_sgd};
pub use group::ProcessGroup;
pub use lockstep_contract::desync_report::{Call, RankState};
pub use options::{DEFAULT_GROUP_TIMEOUT, DebugLevel, Endpoint, GroupOptions};
pub use own_thread::OwnThread;
pub use rank::{Rank, WorldSize};
pub use reducer::{
    CommHook, Reducer, ReducerOptions, backward, broadcast_coalesced, bucket_assignment, clear_grad, grad_enabled,
    verify_params,
};
pub use store::{DEFAULT_STORE_TIMEOUT, Store, TcpStoreOptions};
pub use sync_batch_norm::{SyncBatchNorm, sync_batch_norm};
pub use work::{Receiving, Work};
