//! The data: points of the plane on three spirals, and the number of the spiral of each. They are computed, not downloaded.

use std::ops::Range;

use lockstep::data::{Batch, Dataset};
use tch::{Kind, Tensor};

/// The number of spirals.
pub(crate) const CLASSES: i64 = 3;

// ANCHOR: set
/// Samples with consecutive numbers. Yours would hold the paths of files, or the rows of a table.
pub(crate) struct Spirals {
    numbers: Range<i64>,
}

impl Spirals {
    /// Samples of these numbers; other numbers are other points.
    pub(crate) fn new(numbers: Range<i64>) -> Self {
        Spirals { numbers }
    }
}

impl Dataset for Spirals {
    fn len(&self) -> usize {
        self.numbers.clone().count()
    }

    /// Inputs: `Float [n, 2]`; targets: `Int64 [n]`. Any thread may call this, in any order, so nothing may be kept between calls.
    fn batch(&self, _epoch: u64, indices: &[usize]) -> anyhow::Result<Batch> {
        let indices: Vec<i64> = indices.iter().map(|&index| self.numbers.start + index as i64).collect();
        let numbers = Tensor::from_slice(&indices);
        let targets = numbers.remainder(CLASSES);
        // From the centre to the rim: 997 is prime, so neighbours in number are far from each other.
        let radius = ((&numbers * 383).remainder(997) + 1).to_kind(Kind::Double) / 997.0;
        let angle = &radius * 4.0 + targets.to_kind(Kind::Double) * (std::f64::consts::TAU / CLASSES as f64);
        let inputs = Tensor::stack(&[&radius * angle.cos(), &radius * angle.sin()], 1);
        Ok(Batch { inputs: inputs.to_kind(Kind::Float), targets })
    }
}
// ANCHOR_END: set
