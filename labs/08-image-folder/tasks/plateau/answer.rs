//! Task 3: a rate that waits.
//!
//! `ReduceLROnPlateau` multiplies the learning rate by a factor when the validation loss has stopped falling. A loss is better if
//! it is less than `best * (1 - THRESHOLD)`. Up to `patience` epochs in a row may be no better; the next one reduces the rate and
//! resets the count. A loss that is NaN is never better.

/// How much a loss must fall to be better, as a fraction of the best loss.
const THRESHOLD: f64 = 1e-4;

/// The schedule's options and state.
#[derive(Clone, Debug)]
pub struct Plateau {
    /// The current learning rate.
    pub rate: f64,
    /// The factor by which the rate is multiplied.
    pub factor: f64,
    /// The number of epochs in a row that may be no better.
    pub patience: u64,
    /// The best loss so far. Infinite before the first epoch.
    pub best: f64,
    /// The number of epochs in a row that were no better.
    pub bad: u64,
}

/// Updates the schedule with the validation loss of an epoch.
pub fn plateau(schedule: &mut Plateau, loss: f64) {
    // <answer>
    //~ // Two cases: the loss is better, or it is not.
    //~ todo!("count, and reduce the rate when the patience has run out")
    if loss < schedule.best * (1.0 - THRESHOLD) {
        schedule.best = loss;
        schedule.bad = 0;
    } else {
        schedule.bad += 1;
    }
    if schedule.bad > schedule.patience {
        schedule.rate *= schedule.factor;
        schedule.bad = 0;
    }
    // </answer>
}
