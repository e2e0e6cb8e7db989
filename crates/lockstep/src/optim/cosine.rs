//! A learning rate that rises, and then falls along half a cosine: the usual one of language models.

use std::f64::consts::PI;

use super::Optimizer;
use super::schedule::{ScheduleError, Warmup};

/// [`Warmup`], followed by half a cosine down to a lowest rate, which then stays. A function of the step alone, so a resumed run needs no
/// saved state.
///
/// As Python's `SequentialLR` of `LinearLR` and `CosineAnnealingLR(T_max = steps − warm-up, eta_min)`, in their closed forms. (Beyond its
/// last step Python's would rise again.)
///
/// ```
/// use lockstep::optim::schedule::{Cosine, Warmup};
///
/// # fn main() -> anyhow::Result<()> {
/// let schedule = Cosine::new(Warmup::new(0.1, 0.25, 10)?, 0.01, 110)?;
/// assert_eq!([schedule.lr(0), schedule.lr(10), schedule.lr(110), schedule.lr(999)], [0.025, 0.1, 0.01, 0.01]);
/// # Ok(()) }
/// ```
///
/// Source: Loshchilov and Hutter, "SGDR" (2017), without restarts; `torch/optim/lr_scheduler.py`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cosine {
    warmup: Warmup,
    min_lr: f64,
    steps: u64,
}

impl Cosine {
    /// Reaches `min_lr` at step `steps`, counted from the first step of the warm-up.
    ///
    /// Errors: a lowest rate that is not from 0 to the highest one, and a warm-up that is not over before `steps`.
    pub fn new(warmup: Warmup, min_lr: f64, steps: u64) -> Result<Self, ScheduleError> {
        let refused =
            |option, value, must_be| Err(ScheduleError::Option { schedule: "Cosine", option, value, must_be });
        if !(0.0..=warmup.lr(u64::MAX)).contains(&min_lr) {
            return refused("min_lr", min_lr, "at least 0 and at most the highest rate");
        }
        if steps == 0 || !warmup.is_over(steps - 1) {
            return refused("steps", steps as f64, "more than the steps of the warm-up");
        }
        Ok(Cosine { warmup, min_lr, steps })
    }

    /// The learning rate of the step, counted from 0 over all epochs.
    pub fn lr(&self, step: u64) -> f64 {
        if !self.warmup.is_over(step) {
            return self.warmup.lr(step);
        }
        let (highest, rising) = (self.warmup.lr(step), self.warmup.steps());
        let (done, all) = (step.min(self.steps) - rising, self.steps - rising);
        self.min_lr + (highest - self.min_lr) * (1.0 + (PI * done as f64 / all as f64).cos()) / 2.0
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
    fn refuses_what_makes_no_schedule() {
        let warmup = Warmup::new(0.1, 0.5, 10).unwrap();
        for (min_lr, steps, part) in
            [(0.2, 20, "min_lr"), (f64::NAN, 20, "min_lr"), (-0.1, 20, "min_lr"), (0.0, 10, "steps"), (0.0, 0, "steps")]
        {
            let error = Cosine::new(warmup, min_lr, steps).unwrap_err().to_string();
            assert!(error.contains(&format!("invalid {part} for Cosine")), "{error}");
        }
        assert!(Cosine::new(warmup, 0.0, 11).is_ok() && Cosine::new(Warmup::new(0.1, 1.0, 0).unwrap(), 0.1, 1).is_ok());
    }
}
