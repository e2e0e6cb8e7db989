//! Right: the threshold is taken off, and the count is set in one place.

use crate::plateau::Plateau;

const THRESHOLD: f64 = 1e-4;

pub fn plateau(schedule: &mut Plateau, loss: f64) {
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
