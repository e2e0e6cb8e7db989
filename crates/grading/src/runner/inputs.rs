//! Random inputs of a task.

use rand_mt::Mt64;

/// Random inputs.
pub struct Inputs(pub(super) Mt64);

impl Inputs {
    /// A number in `range`.
    pub fn below(&mut self, range: std::ops::Range<usize>) -> usize {
        range.start + (self.0.next_u64() % range.len().max(1) as u64) as usize
    }

    /// Numbers from -4 to 4 in steps of 1/8. Sums of a few of them are exact even in single precision.
    pub fn numbers(&mut self, count: usize) -> Vec<f64> {
        (0..count).map(|_| self.below(0..65) as f64 / 8.0 - 4.0).collect()
    }

    /// A seed for another generator.
    pub fn seed(&mut self) -> u64 {
        self.0.next_u64()
    }
}
