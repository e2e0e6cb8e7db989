//! Layers that tch does not have, or not as PyTorch has them, in the manner of its `nn`.

mod batch_norm;
pub(crate) mod failure;
mod sync_batch_norm;

pub use batch_norm::BatchNorm2d;
pub use sync_batch_norm::{SyncBatchNorm2d, SyncBatchNormOptions};
