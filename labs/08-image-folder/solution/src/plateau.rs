//! Task 3: a rate that waits.
//!
//! `ReduceLROnPlateau`: a learning rate is multiplied by a factor when the validation loss has stopped to fall. A loss is better if it
//! is less than `best * (1 - THRESHOLD)`. As many epochs in a row as `patience` says may be no better; the next such one
//! reduces the rate, and the count begins anew. A loss that is not a number is never better.

/// How much a loss must fall to count, as a part of the best one.
const THRESHOLD: f64 = 1e-4;

/// The schedule: what it was told, and what it remembers.
#[derive(Clone, Debug)]
pub struct Plateau {
    /// The learning rate now.
    pub rate: f64,
    /// What it is multiplied by.
    pub factor: f64,
    /// How many epochs in a row may be no better.
    pub patience: u64,
    /// The best loss so far; infinite before the first.
    pub best: f64,
    /// How many epochs in a row were no better.
    pub bad: u64,
}

/// Takes the validation loss of an epoch.
pub fn plateau(schedule: &mut Plateau, loss: f64) {
    // <answer>
    //~ // Two cases: the loss is better, or it is not.
    //~ todo!("count, and reduce the rate when patience is at its end")
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
