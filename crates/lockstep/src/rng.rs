//! Random numbers that are keyed by a position and never depend on what was drawn before: those of the data sets, and libtorch's for a
//! training step.
//!
//! libtorch draws dropout and others from one generator that continues from step to step. In a resumed process its state would
//! differ, and the run would train other weights. Seeded again for each step, it draws the same numbers in any process.

pub use lockstep_datasets::rng::KeyedRng;

use crate::Rank;

/// Keeps these seeds apart from other streams of the same seed.
const STEPS: u64 = u64::from_be_bytes(*b"stepseed");

/// The seed of libtorch's generator for one step of one rank.
pub fn step_seed(seed: u64, epoch: u64, step: usize, rank: Rank) -> i64 {
    let key = [seed, STEPS, epoch, step as u64, rank.get() as u64];
    KeyedRng::new(&key).next_u64() as i64 // all 64 bits, as torch.manual_seed takes them
}

/// Seeds libtorch's generators with [`step_seed`], before the step's forward pass.
///
/// The generators belong to the process: on the CPU, loader workers that draw from them would race with the step.
pub fn seed_step(seed: u64, epoch: u64, step: usize, rank: Rank) {
    tch::manual_seed(step_seed(seed, epoch, step, rank));
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn differs_for_each_seed_epoch_step_and_rank() {
        let mut seeds = HashSet::new();
        for key in 0..81 {
            let digit = |place| key / 3_usize.pow(place) % 3;
            let (seed, epoch) = (digit(0) as u64, digit(1) as u64);
            seeds.insert(step_seed(seed, epoch, digit(2), Rank::new(digit(3))));
        }
        assert_eq!(seeds.len(), 81);
    }

    #[test]
    fn draws_the_same_whatever_was_drawn_before() {
        let draw = || {
            seed_step(1, 2, 3, Rank::ZERO);
            tch::Tensor::rand([4], tch::kind::FLOAT_CPU)
        };
        let first = draw();
        assert_eq!(first, draw());
    }
}
