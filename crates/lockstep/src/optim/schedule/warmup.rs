//! The linear scaling rule of the learning rate, with a gradual warm-up.

use super::error::ScheduleError;
use crate::optim::Optimizer;

/// A learning rate that rises linearly over the first steps and is constant from then on. It is a function of the step alone,
/// so a resumed run needs no saved state.
///
/// Like Python's `LinearLR(optimizer, start_factor, end_factor=1.0, total_iters)`, in its closed form: step 0 trains with
/// `start_factor * lr`, step `total_iters` and all later ones with `lr`.
///
/// ```
/// use lockstep::optim::schedule::Warmup;
///
/// # fn main() -> anyhow::Result<()> {
/// // 8 ranks of 64 samples make batches of 512. The recipe's 0.1 is for batches of 256.
/// let warmup = Warmup::linear_scaling(0.1, 256, 64, 8, 5 * 100)?; // over 5 epochs of 100 steps
/// assert_eq!([warmup.lr(0), warmup.lr(250), warmup.lr(500), warmup.lr(9999)], [0.1, 0.15000000000000002, 0.2, 0.2]);
/// # Ok(()) }
/// ```
///
/// Source: Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour" (2017), sections 2.1 and 2.2;
/// `torch/optim/lr_scheduler.py`, `LinearLR._get_closed_form_lr`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Warmup {
    lr: f64,
    start_factor: f64,
    steps: u64,
}

impl Warmup {
    /// From `start_factor * lr` at step 0 up to `lr` at step `steps`; constant if `steps` is 0.
    ///
    /// # Errors
    /// A learning rate that is negative or not finite, and a factor that is not above 0 and at most 1 (PyTorch's check).
    pub fn new(lr: f64, start_factor: f64, steps: u64) -> Result<Self, ScheduleError> {
        let refused = |option, value, must_be| ScheduleError::Option { schedule: "Warmup", option, value, must_be };
        if !(lr.is_finite() && lr >= 0.0) {
            return Err(refused("lr", lr, "finite and at least 0"));
        }
        if !(start_factor > 0.0 && start_factor <= 1.0) {
            return Err(refused("start_factor", start_factor, "above 0 and at most 1"));
        }
        Ok(Warmup { lr, start_factor, steps })
    }

    /// The linear scaling rule: a recipe's `lr`, chosen for batches of `base` samples, times the ratio of the batch of all
    /// ranks (`batch` samples on each of `world_size`) to `base`. Starts at the recipe's own `lr`, whatever the number of
    /// ranks, and reaches the scaled one at step `steps`. If the batch is not larger than `base`, no warm-up is needed and the
    /// scaled rate is constant.
    ///
    /// # Errors
    /// As [`new`](Self::new), and a batch or base of 0 samples.
    pub fn linear_scaling(
        lr: f64,
        base: usize,
        batch: usize,
        world_size: usize,
        steps: u64,
    ) -> Result<Self, ScheduleError> {
        let (global, base) = (batch as f64 * world_size as f64, base as f64);
        if !(global > 0.0 && base > 0.0) {
            let (option, value) = if base > 0.0 { ("batch of all ranks", global) } else { ("base batch", base) };
            return Err(ScheduleError::Option { schedule: "linear scaling", option, value, must_be: "above 0" });
        }
        let scale = global / base;
        Self::new(lr * scale, (1.0 / scale).min(1.0), steps)
    }

    /// The learning rate of the step, counted from 0 over all epochs.
    pub fn lr(&self, step: u64) -> f64 {
        self.lr * self.factor(step)
    }

    /// The fraction of its full rate that a parameter group has in the step: from the start factor up to 1.
    pub fn factor(&self, step: u64) -> f64 {
        if self.is_over(step) {
            return 1.0;
        }
        self.start_factor + (1.0 - self.start_factor) * step as f64 / self.steps as f64
    }

    /// Returns true if the rate is constant from this step on. Then something else may set it, such as
    /// [`ReduceLrOnPlateau`](super::ReduceLrOnPlateau).
    pub fn is_over(&self, step: u64) -> bool {
        step >= self.steps
    }

    /// Sets the rates of all parameter groups for the step.
    pub fn apply(&self, step: u64, optimizer: &mut impl Optimizer) {
        optimizer.set_lr(self.lr(step));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rises_from_the_recipes_rate_to_the_scaled_one_and_stays() {
        let warmup = Warmup::linear_scaling(0.1, 32, 32, 4, 10).unwrap();
        assert_eq!([warmup.lr(0), warmup.lr(10), warmup.lr(11), warmup.lr(u64::MAX)], [0.1, 0.4, 0.4, 0.4]);
        assert!((0..10).all(|step| warmup.lr(step) < warmup.lr(step + 1)));
        assert!(!warmup.is_over(9) && warmup.is_over(10));
    }

    #[test]
    fn does_not_warm_up_to_a_smaller_rate_nor_without_steps() {
        let smaller = Warmup::linear_scaling(0.1, 256, 32, 4, 10).unwrap();
        assert_eq!([smaller.lr(0), smaller.lr(10)], [0.05, 0.05]);
        assert_eq!(Warmup::new(0.3, 0.1, 0).unwrap().lr(0), 0.3);
    }

    #[test]
    fn refuses_options_out_of_range_and_names_them() {
        let message = |refused: Result<Warmup, ScheduleError>| refused.unwrap_err().to_string();
        assert!(message(Warmup::new(f64::NAN, 0.5, 1)).contains("lr"));
        assert!(message(Warmup::new(0.1, 0.0, 1)).contains("start_factor"));
        assert!(message(Warmup::new(0.1, 1.5, 1)).contains("start_factor"));
        assert!(message(Warmup::linear_scaling(0.1, 0, 32, 4, 1)).contains("base batch"));
        assert!(message(Warmup::linear_scaling(0.1, 32, 0, 4, 1)).contains("batch of all ranks"));
        assert!(message(Warmup::linear_scaling(f64::MAX, 1, 32, 4, 1)).contains("lr"));
    }
}
