//! Answers to `speed`: wrong ones, and unusual right ones.

use crate::speed::{Sizes, Speed, StepTimes};

fn took(step: &StepTimes) -> f64 {
    step.data + step.compute + step.exchange
}

/// The given program: one rank, with its first step, without attention.
pub fn first_rank(sizes: &Sizes, peak: f64, ranks: &[Vec<StepTimes>]) -> Speed {
    let steps = &ranks[0];
    let tokens: u64 = steps.iter().map(|step| step.tokens).sum();
    let seconds: f64 = steps.iter().map(took).sum();
    let tokens = tokens as f64 / seconds;
    Speed { tokens, utilization: tokens * 6.0 * sizes.parameters as f64 / peak, waiting: 0.0 }
}

/// How the answers below differ.
struct Way {
    first: usize,
    tokens: fn(&[Vec<StepTimes>]) -> f64,
    seconds: fn(&[Vec<StepTimes>]) -> f64,
    operations: fn(&Sizes) -> f64,
    peaks: fn(usize) -> f64,
    waiting: fn(&[Vec<StepTimes>], f64) -> f64,
}

const RIGHT: Way = Way {
    first: 1,
    tokens: |ranks| ranks.iter().flatten().map(|step| step.tokens as f64).sum(),
    seconds: |ranks| {
        let slowest = |number: usize| ranks.iter().map(|steps| took(&steps[number])).fold(0.0, f64::max);
        (0..ranks[0].len()).map(slowest).sum()
    },
    operations: |sizes| (6 * sizes.parameters + 12 * sizes.layers * sizes.width * sizes.context) as f64,
    peaks: |ranks| ranks as f64,
    waiting: |ranks, seconds| {
        1.0 - ranks.iter().flatten().map(|step| step.compute).sum::<f64>() / seconds / ranks.len() as f64
    },
};

impl Way {
    fn speed(&self, sizes: &Sizes, peak: f64, ranks: &[Vec<StepTimes>]) -> Speed {
        let ranks: Vec<Vec<StepTimes>> = ranks.iter().map(|steps| steps[self.first..].to_vec()).collect();
        let seconds = (self.seconds)(&ranks);
        let tokens = (self.tokens)(&ranks) / seconds;
        Speed {
            tokens,
            utilization: tokens * (self.operations)(sizes) / (peak * (self.peaks)(ranks.len())),
            waiting: (self.waiting)(&ranks, seconds),
        }
    }
}

/// Counts the first step.
pub fn warm_up(sizes: &Sizes, peak: f64, ranks: &[Vec<StepTimes>]) -> Speed {
    Way { first: 0, ..RIGHT }.speed(sizes, peak, ranks)
}

/// Counts the tokens of one rank only.
pub fn own_tokens(sizes: &Sizes, peak: f64, ranks: &[Vec<StepTimes>]) -> Speed {
    let own = |ranks: &[Vec<StepTimes>]| ranks[0].iter().map(|step| step.tokens as f64).sum();
    Way { tokens: own, ..RIGHT }.speed(sizes, peak, ranks)
}

/// Adds up the seconds of all ranks, as if they worked one after the other.
pub fn one_after_the_other(sizes: &Sizes, peak: f64, ranks: &[Vec<StepTimes>]) -> Speed {
    let all = |ranks: &[Vec<StepTimes>]| ranks.iter().flatten().map(took).sum();
    Way { seconds: all, ..RIGHT }.speed(sizes, peak, ranks)
}

/// Takes one rank's times, although another one may be slower.
pub fn own_seconds(sizes: &Sizes, peak: f64, ranks: &[Vec<StepTimes>]) -> Speed {
    let own = |ranks: &[Vec<StepTimes>]| ranks[0].iter().map(took).sum();
    Way { seconds: own, ..RIGHT }.speed(sizes, peak, ranks)
}

/// Takes the rank that is slowest over all steps, not in each of them.
pub fn slowest_of_all(sizes: &Sizes, peak: f64, ranks: &[Vec<StepTimes>]) -> Speed {
    let slowest = |ranks: &[Vec<StepTimes>]| ranks.iter().map(|steps| steps.iter().map(took).sum()).fold(0.0, f64::max);
    Way { seconds: slowest, ..RIGHT }.speed(sizes, peak, ranks)
}

/// Averages the rates of the steps.
pub fn mean_of_rates(sizes: &Sizes, peak: f64, ranks: &[Vec<StepTimes>]) -> Speed {
    let steps = ranks[0].len();
    let rate = |number: usize| {
        let some: Vec<Vec<StepTimes>> = ranks.iter().map(|steps| vec![steps[number]]).collect();
        Way { first: 0, ..RIGHT }.speed(sizes, peak, &some).tokens
    };
    let right = RIGHT.speed(sizes, peak, ranks);
    let tokens = (1..steps).map(rate).sum::<f64>() / (steps - 1) as f64;
    Speed { tokens, utilization: right.utilization * tokens / right.tokens, waiting: right.waiting }
}

/// Counts the forward pass only.
pub fn forward_only(sizes: &Sizes, peak: f64, ranks: &[Vec<StepTimes>]) -> Speed {
    Way { operations: |sizes| (RIGHT.operations)(sizes) / 3.0, ..RIGHT }.speed(sizes, peak, ranks)
}

/// Leaves out attention.
pub fn no_attention(sizes: &Sizes, peak: f64, ranks: &[Vec<StepTimes>]) -> Speed {
    Way { operations: |sizes| 6.0 * sizes.parameters as f64, ..RIGHT }.speed(sizes, peak, ranks)
}

/// Counts attention as if the context were twice the width, as in many small models.
pub fn width_twice(sizes: &Sizes, peak: f64, ranks: &[Vec<StepTimes>]) -> Speed {
    let context = 2 * sizes.width;
    RIGHT.speed(&Sizes { context, ..*sizes }, peak, ranks)
}

/// Compares all ranks with the peak of one.
pub fn one_peak(sizes: &Sizes, peak: f64, ranks: &[Vec<StepTimes>]) -> Speed {
    Way { peaks: |_| 1.0, ..RIGHT }.speed(sizes, peak, ranks)
}

/// Divides by the seconds of computing, so that waiting does not count.
pub fn computing_only(sizes: &Sizes, peak: f64, ranks: &[Vec<StepTimes>]) -> Speed {
    let computing = |ranks: &[Vec<StepTimes>]| {
        let slowest = |number: usize| ranks.iter().map(|steps| steps[number].compute).fold(0.0, f64::max);
        (0..ranks[0].len()).map(slowest).sum()
    };
    let wrong = Way { seconds: computing, ..RIGHT }.speed(sizes, peak, ranks);
    Speed { waiting: RIGHT.speed(sizes, peak, ranks).waiting, ..wrong }
}

fn part(ranks: &[Vec<StepTimes>], seconds: f64, of: fn(&StepTimes) -> f64) -> f64 {
    ranks.iter().flatten().map(of).sum::<f64>() / seconds / ranks.len() as f64
}

/// Does not count the wait for data as waiting.
pub fn exchange_only(sizes: &Sizes, peak: f64, ranks: &[Vec<StepTimes>]) -> Speed {
    let waiting = |ranks: &[Vec<StepTimes>], _: f64| {
        let own: f64 = ranks.iter().flatten().map(took).sum();
        ranks.iter().flatten().map(|step| step.exchange).sum::<f64>() / own
    };
    Way { waiting, ..RIGHT }.speed(sizes, peak, ranks)
}

/// Forgets that a rank waits for the others after its own step.
pub fn own_waiting(sizes: &Sizes, peak: f64, ranks: &[Vec<StepTimes>]) -> Speed {
    let waiting = |ranks: &[Vec<StepTimes>], seconds: f64| part(ranks, seconds, |step| step.data + step.exchange);
    Way { waiting, ..RIGHT }.speed(sizes, peak, ranks)
}

/// Adds up the waiting of all ranks.
pub fn waiting_of_all(sizes: &Sizes, peak: f64, ranks: &[Vec<StepTimes>]) -> Speed {
    let waiting = |ranks: &[Vec<StepTimes>], seconds: f64| ranks.len() as f64 * (RIGHT.waiting)(ranks, seconds);
    Way { waiting, ..RIGHT }.speed(sizes, peak, ranks)
}

fn forward(sizes: &Sizes) -> u64 {
    2 * sizes.parameters + (0..sizes.layers).map(|_| 4 * sizes.width * sizes.context).sum::<u64>()
}

/// Right: counts the passes and the layers one by one.
pub fn by_passes(sizes: &Sizes, peak: f64, ranks: &[Vec<StepTimes>]) -> Speed {
    Way { operations: |sizes| 3.0 * forward(sizes) as f64, ..RIGHT }.speed(sizes, peak, ranks)
}

/// Right: adds up each rank's waiting, step by step.
pub fn step_by_step(sizes: &Sizes, peak: f64, ranks: &[Vec<StepTimes>]) -> Speed {
    let waiting = |ranks: &[Vec<StepTimes>], seconds: f64| {
        let mut waited = 0.0;
        for number in 0..ranks[0].len() {
            let slowest = ranks.iter().map(|steps| took(&steps[number])).fold(0.0, f64::max);
            for steps in ranks {
                let step = &steps[number];
                waited += step.data + step.exchange + slowest - took(step);
            }
        }
        waited / seconds / ranks.len() as f64
    };
    Way { waiting, ..RIGHT }.speed(sizes, peak, ranks)
}
