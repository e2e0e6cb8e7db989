//! A weight too large for one rank. You do not change this file.

use std::cell::Cell;

use tch::Tensor;

/// A layer's weight `[outputs, inputs]`, of which a rank takes a part.
pub struct Weight {
    whole: Tensor,
    taken: Cell<i64>,
}

impl Weight {
    pub(crate) fn new(whole: Tensor) -> Self {
        Weight { whole, taken: Cell::new(0) }
    }

    /// Its shape.
    pub fn size(&self) -> Vec<i64> {
        self.whole.size()
    }

    /// Takes `count` rows: some of the layer's outputs.
    pub fn rows(&self, from: i64, count: i64) -> Tensor {
        self.take(0, from, count)
    }

    /// Takes `count` columns: some of the layer's inputs.
    pub fn columns(&self, from: i64, count: i64) -> Tensor {
        self.take(1, from, count)
    }

    fn take(&self, dim: i64, from: i64, count: i64) -> Tensor {
        let part = self.whole.narrow(dim, from, count).contiguous();
        self.taken.set(self.taken.get() + part.numel() as i64);
        part
    }

    /// How many numbers the rank has taken.
    pub(crate) fn taken(&self) -> i64 {
        self.taken.get()
    }
}
