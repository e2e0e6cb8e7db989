//! Answers to `resume`: wrong ones, and unusual right ones.

use anyhow::Result;
use c10d::ReduceOp;
use lockstep_answers::edit;
use tch::Tensor;

use crate::resumable::{Run, SCALE, Settings};

/// Where a training is.
#[derive(Clone, Copy)]
struct Place {
    epoch: u64,
    at: usize,
    steps: u64,
    scale: f64,
    clean: u64,
}

/// How the answers below differ from the right one.
struct Way {
    share: fn(&Run, &[usize]) -> Vec<usize>,
    agree: bool,
    skip: bool,
    /// Batches that are skipped count as steps.
    counts_skipped: bool,
    halve: bool,
    grow: bool,
    save: fn(Place, &Run) -> Vec<f64>,
    load: fn(&[f64], &Run) -> Place,
    save_first: bool,
}

const FIRST: Place = Place { epoch: 0, at: 0, steps: 0, scale: SCALE, clean: 0 };

const RIGHT: Way = Way {
    share: |run, all| all.iter().skip(run.rank).step_by(run.ranks).copied().collect(),
    agree: true,
    skip: true,
    counts_skipped: false,
    halve: true,
    grow: true,
    save: |place, _| vec![place.epoch as f64, place.at as f64, place.steps as f64, place.scale, place.clean as f64],
    load: |saved, _| Place {
        epoch: saved[0] as u64,
        at: saved[1] as usize,
        steps: saved[2] as u64,
        scale: saved[3],
        clean: saved[4] as u64,
    },
    save_first: false,
};

impl Way {
    fn train(&self, run: &mut Run) -> Result<()> {
        let Settings { epochs, windows, batch, growth_interval, .. } = run.settings;
        let mut place = run.snapshot().map_or(FIRST, |saved| (self.load)(&saved, run));
        for epoch in place.epoch..epochs {
            let order = run.order(epoch);
            place.epoch = epoch;
            while place.at < windows {
                let all = &order[place.at..windows.min(place.at + batch)];
                let mine = (self.share)(run, all);
                if self.save_first {
                    let numbers = (self.save)(Place { at: place.at + all.len(), ..place }, run);
                    run.save(&numbers);
                }
                let mut finite = run.forward_backward(epoch, &mine, place.scale)?;
                if self.agree {
                    let mut overflows = Tensor::from(i64::from(!finite));
                    run.group.all_reduce(&mut overflows, ReduceOp::Max)?;
                    finite = overflows.int64_value(&[]) == 0;
                }
                if finite || !self.skip {
                    run.step(run.learning_rate(place.steps));
                }
                place.steps += u64::from(finite || !self.skip || self.counts_skipped);
                place.clean = if finite { place.clean + 1 } else { 0 };
                if !finite && self.halve {
                    place.scale /= 2.0;
                }
                if place.clean == growth_interval && self.grow {
                    (place.scale, place.clean) = (2.0 * place.scale, 0);
                }
                place.at += all.len();
                if !self.save_first {
                    let numbers = (self.save)(place, run);
                    run.save(&numbers);
                }
            }
            place.at = 0;
        }
        Ok(())
    }
}

/// Starts from the beginning each time.
pub fn no_snapshot(run: &mut Run) -> Result<()> {
    Way { load: |_, _| FIRST, ..RIGHT }.train(run)
}

/// Starts the epoch again.
pub fn epoch_again(run: &mut Run) -> Result<()> {
    Way { load: |saved, run| Place { at: 0, ..(RIGHT.load)(saved, run) }, ..RIGHT }.train(run)
}

/// Saves how many windows this rank has trained with.
pub fn own_windows(run: &mut Run) -> Result<()> {
    let save = |place: Place, run: &Run| (RIGHT.save)(Place { at: place.at / run.ranks, ..place }, run);
    let load = |saved: &[f64], run: &Run| {
        let place = (RIGHT.load)(saved, run);
        Place { at: place.at * run.ranks, ..place }
    };
    Way { save, load, ..RIGHT }.train(run)
}

/// Begins the schedule again, with its warm-up.
pub fn warm_up_again(run: &mut Run) -> Result<()> {
    Way { load: |saved, run| Place { steps: 0, ..(RIGHT.load)(saved, run) }, ..RIGHT }.train(run)
}

/// Counts a batch whose step was skipped in the schedule.
pub fn counts_batches(run: &mut Run) -> Result<()> {
    Way { counts_skipped: true, ..RIGHT }.train(run)
}

/// Begins with the first scale again.
pub fn first_scale(run: &mut Run) -> Result<()> {
    Way { load: |saved, run| Place { scale: SCALE, ..(RIGHT.load)(saved, run) }, ..RIGHT }.train(run)
}

/// Forgets how many steps the scale has been right for.
pub fn no_count(run: &mut Run) -> Result<()> {
    Way { load: |saved, run| Place { clean: 0, ..(RIGHT.load)(saved, run) }, ..RIGHT }.train(run)
}

/// Each rank looks at its own gradients only.
pub fn own_overflow(run: &mut Run) -> Result<()> {
    Way { agree: false, ..RIGHT }.train(run)
}

/// Takes the step although a gradient has overflowed.
pub fn no_skip(run: &mut Run) -> Result<()> {
    Way { skip: false, ..RIGHT }.train(run)
}

/// Skips the step and keeps the scale.
pub fn no_halving(run: &mut Run) -> Result<()> {
    Way { halve: false, ..RIGHT }.train(run)
}

/// Never makes the scale larger.
pub fn no_growth(run: &mut Run) -> Result<()> {
    Way { grow: false, ..RIGHT }.train(run)
}

/// Saves the next position before the batch is trained.
pub fn saves_before(run: &mut Run) -> Result<()> {
    Way { save_first: true, ..RIGHT }.train(run)
}

/// Every rank trains with the whole batch.
pub fn whole_batch(run: &mut Run) -> Result<()> {
    Way { share: |_, all| all.to_vec(), ..RIGHT }.train(run)
}

/// Drops windows so that all ranks have as many.
pub fn drops_rest(run: &mut Run) -> Result<()> {
    let share = |run: &Run, all: &[usize]| {
        let each = all.len() / run.ranks;
        all[run.rank * each..][..each].to_vec()
    };
    Way { share, ..RIGHT }.train(run)
}

/// The scale never grows above the first one.
#[edit(2.0 * scale => (2.0 * scale).min(SCALE))]
pub fn capped() {}

/// The scale is never less than half of the first one.
#[edit(scale / 2.0 => (scale / 2.0).max(SCALE / 2.0))]
pub fn floored() {}

/// Halves the scale for each rank that overflows.
#[edit(ReduceOp::Max => ReduceOp::Sum)]
#[edit(scale / 2.0 => scale / 2f64.powi(overflows.int64_value(&[]) as i32))]
pub fn halves_for_each() {}

/// Counts the steps without an overflow from each epoch's beginning.
#[edit(at = 0; => (at, clean) = (0, 0);)]
pub fn counts_in_epochs() {}

/// Begins each epoch with the first scale.
#[edit(at = 0; => (at, scale) = (0, SCALE);)]
pub fn scale_of_epochs() {}

/// Saves the beginning of an epoch at its end.
#[edit(at as f64 => (at % windows) as f64)]
pub fn same_epoch() {}

/// Leaves out a batch without a window of this rank.
#[edit(let finite = => if mine.is_empty() { at += all.len(); continue; } let finite =)]
pub fn skips_empty() {}

/// Right: each rank takes a block of neighbours, and the position counts from the first epoch.
pub fn blocks(run: &mut Run) -> Result<()> {
    let share = |run: &Run, all: &[usize]| {
        let begin = |rank: usize| all.len() * rank / run.ranks;
        all[begin(run.rank)..begin(run.rank + 1)].to_vec()
    };
    let save = |place: Place, run: &Run| {
        let all = place.epoch as usize * run.settings.windows + place.at;
        vec![all as f64, place.steps as f64, place.scale, place.clean as f64]
    };
    let load = |saved: &[f64], run: &Run| {
        let (all, windows) = (saved[0] as usize, run.settings.windows);
        let (epoch, at) = ((all / windows) as u64, all % windows);
        Place { epoch, at, steps: saved[1] as u64, scale: saved[2], clean: saved[3] as u64 }
    };
    Way { share, save, load, ..RIGHT }.train(run)
}

/// Right: saves the scale as the exponent of a power of two.
pub fn exponent(run: &mut Run) -> Result<()> {
    let save = |place: Place, run: &Run| (RIGHT.save)(Place { scale: place.scale.log2(), ..place }, run);
    let load = |saved: &[f64], run: &Run| {
        let place = (RIGHT.load)(saved, run);
        Place { scale: place.scale.exp2(), ..place }
    };
    Way { save, load, ..RIGHT }.train(run)
}
