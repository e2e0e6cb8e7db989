//! Layers that tch lacks or that differ from PyTorch's, in the style of its `nn`.

mod batch_norm;
pub(crate) mod failure;
mod sync_batch_norm;

pub use batch_norm::BatchNorm2d;
pub use failure::{caught, raise};
pub use sync_batch_norm::{SyncBatchNorm2d, SyncBatchNormOptions};
