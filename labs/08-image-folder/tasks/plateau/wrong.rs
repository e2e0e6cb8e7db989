//! Answers to `plateau`: wrong ones, and unusual right ones.

use lockstep_answers::edit;

use crate::plateau::Plateau;

const THRESHOLD: f64 = 1e-4;

/// Reduces the rate an epoch early.
#[edit(schedule.bad > schedule.patience => schedule.bad >= schedule.patience)]
pub fn impatient() {}

/// Does not reset the count after a reduction.
#[edit(schedule.factor; schedule.bad = 0; => schedule.factor;)]
pub fn no_new_count() {}

/// Counts all bad epochs, not those in a row.
#[edit(schedule.best = loss; schedule.bad = 0; => schedule.best = loss;)]
pub fn adds_up() {}

/// Compares with the previous epoch.
#[edit(schedule.best = loss; => )]
#[edit(if schedule.bad > => schedule.best = loss; if schedule.bad >)]
pub fn against_the_last() {}

/// Has no threshold.
#[edit(schedule.best * (1.0 - THRESHOLD) => schedule.best)]
pub fn any_better() {}

/// Tests whether the loss is worse, which is false for NaN.
#[edit(loss < schedule.best * (1.0 - THRESHOLD) => !(loss >= schedule.best * (1.0 - THRESHOLD)))]
pub fn not_a_number() {}

/// Subtracts the threshold as an absolute number.
#[edit(schedule.best * (1.0 - THRESHOLD) => schedule.best - THRESHOLD)]
pub fn absolute() {}

/// Takes every lower loss as the best one, even one that does not count as better.
#[edit(schedule.best = loss; => )]
#[edit(if schedule.bad > => schedule.best = schedule.best.min(loss); if schedule.bad >)]
pub fn creeping() {}

/// Forgets the best loss with each reduction.
#[edit(*= schedule.factor; => *= schedule.factor; schedule.best = f64::INFINITY;)]
pub fn new_best() {}

/// Takes the loss at a reduction as the best one.
#[edit(*= schedule.factor; => *= schedule.factor; schedule.best = loss;)]
pub fn new_best_at_reduction() {}

/// Checks the count before it counts the epoch.
pub fn counts_after(schedule: &mut Plateau, loss: f64) {
    if loss < schedule.best * (1.0 - THRESHOLD) {
        schedule.best = loss;
        schedule.bad = 0;
    } else {
        if schedule.bad > schedule.patience {
            schedule.rate *= schedule.factor;
            schedule.bad = 0;
        }
        schedule.bad += 1;
    }
}

/// Divides by the factor.
#[edit(*= => /=)]
pub fn divides() {}

/// Leaves out an epoch with a loss of NaN.
#[edit(if loss < => if loss.is_nan() { return; } if loss <)]
pub fn skips_nan() {}

/// Divides the fall by the best loss, which is infinite at first.
#[edit(loss < schedule.best * (1.0 - THRESHOLD) => (schedule.best - loss) / schedule.best > THRESHOLD)]
pub fn from_infinity() {}

/// Takes the part `factor` off the rate.
#[edit(schedule.rate *= schedule.factor => schedule.rate -= schedule.rate * schedule.factor)]
pub fn complement() {}

/// Halves the rate.
#[edit(*= schedule.factor => /= 2.0)]
pub fn halves() {}

/// Divides by ten, as PyTorch does if nobody says otherwise.
#[edit(*= schedule.factor => *= 0.1)]
pub fn tenth() {}

/// Multiplies the rate by itself.
#[edit(*= schedule.factor => *= schedule.rate)]
pub fn squares() {}

/// Knows one patience only.
#[edit(schedule.bad > schedule.patience => schedule.bad > 3)]
pub fn fixed_patience() {}

/// Takes a loss that equals the bound as better.
#[edit(loss < schedule.best => loss <= schedule.best)]
pub fn or_equal() {}

/// Reduces an epoch early, and takes any fall as better.
#[edit(schedule.best * (1.0 - THRESHOLD) => schedule.best)]
#[edit(schedule.bad > schedule.patience => schedule.bad >= schedule.patience)]
pub fn impatient_and_any_better() {}

/// Right: subtracts the threshold and sets the count in one place.
pub fn one_count(schedule: &mut Plateau, loss: f64) {
    let better =
        loss < schedule.best - schedule.best.abs() * THRESHOLD || schedule.best.is_infinite() && loss.is_finite();
    schedule.bad = if better { 0 } else { schedule.bad + 1 };
    if better {
        schedule.best = loss;
    }
    if schedule.bad == schedule.patience + 1 {
        (schedule.rate, schedule.bad) = (schedule.rate * schedule.factor, 0);
    }
}
