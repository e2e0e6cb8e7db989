//! The options of fully sharded training.

use tch::Kind;

/// How a model is sharded; names and defaults are those of PyTorch's `fully_shard`, where it has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FullyShardOptions {
    /// Frees a unit's parameters between its forward and its backward pass. If off, they stay: more memory for one all-gather
    /// less, which is ZeRO's stage 2. The backward pass frees them, or [`FullyShard::reshard`](super::FullyShard::reshard).
    pub reshard_after_forward: bool,
    /// Starts the all-gather of the next unit while one computes: in the forward pass by the order of the pass before, in the
    /// backward pass by that of the forward pass.
    pub prefetch: bool,
    /// The dtypes of computing and of reducing.
    pub mixed_precision: MixedPrecision,
}

impl Default for FullyShardOptions {
    fn default() -> Self {
        let mixed_precision = MixedPrecision::default();
        FullyShardOptions { reshard_after_forward: true, prefetch: true, mixed_precision }
    }
}

/// Dtypes apart from that of the parameters, in which each rank keeps its part and the optimizer steps; PyTorch's
/// `MixedPrecisionPolicy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MixedPrecision {
    /// In which a unit's parameters are gathered and its inputs given to it: `param_dtype`. By default that of the parameters.
    pub param: Option<Kind>,
    /// In which gradients are added up and reduced: `reduce_dtype`. By default `param`.
    pub reduce: Option<Kind>,
}
