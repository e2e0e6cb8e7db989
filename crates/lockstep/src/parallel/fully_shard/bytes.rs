//! The memory of a sharded model on one rank, counted by the tensors that are alive.

use super::unit::Unit;

/// Bytes of a sharded model on this rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardBytes {
    /// This rank's parts of the parameters.
    pub parameters: u64,
    /// Their gradients.
    pub gradients: u64,
    /// Parameters that are whole now, because their unit computes or will soon.
    pub gathered: u64,
    /// Gradients that are whole now, because they are not yet reduced.
    pub unreduced: u64,
    /// The most that was whole at once so far, as seen before each unit's forward and after each unit's backward pass.
    pub most_whole: u64,
}

impl ShardBytes {
    pub(super) fn add(&mut self, unit: &Unit) {
        let flat = unit.flat();
        let gradients: Vec<_> = flat.params().iter().map(|param| param.part().grad()).collect();
        let (gathered, unreduced) = unit.whole_bytes();
        self.parameters += c10d::storage_bytes([flat.part()]);
        self.gradients += c10d::storage_bytes(&gradients);
        self.gathered += gathered;
        self.unreduced += unreduced;
    }
}
