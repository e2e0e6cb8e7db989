//! Layers that tch does not have, in the manner of its `nn`.

pub(crate) mod failure;
mod sync_batch_norm;

pub use sync_batch_norm::{SyncBatchNorm2d, SyncBatchNormOptions};
