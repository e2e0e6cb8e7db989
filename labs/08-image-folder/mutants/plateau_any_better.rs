//! Any fall counts, however small.

use crate::plateau::Plateau;

pub fn plateau(schedule: &mut Plateau, loss: f64) {
    if loss < schedule.best {
        schedule.best = loss;
        schedule.bad = 0;
    } else {
        schedule.bad += 1;
    }
    if schedule.bad > schedule.patience {
        schedule.rate *= schedule.factor;
        schedule.bad = 0;
    }
}
