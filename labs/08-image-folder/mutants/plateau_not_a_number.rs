//! Asks whether it is worse: NaN is not, and becomes the best.

use crate::plateau::Plateau;

const THRESHOLD: f64 = 1e-4;

pub fn plateau(schedule: &mut Plateau, loss: f64) {
    if loss >= schedule.best * (1.0 - THRESHOLD) {
        schedule.bad += 1;
    } else {
        schedule.best = loss;
        schedule.bad = 0;
    }
    if schedule.bad > schedule.patience {
        schedule.rate *= schedule.factor;
        schedule.bad = 0;
    }
}
