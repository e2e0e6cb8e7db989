//! Grades `large_batch`: the rate of each step, and what a training on two ranks makes of it.

use lockstep_grading::{Claim, Numbers, Runner, causes, close, counted};
use serde::Serialize;

const RANKS: usize = 2;
/// The training's scaled rate: stable near the end of the training, and far from it at its start.
const SCALED: f64 = 0.2;
/// With the rates that are right the loss ends below 1e-27; at the recipe's own it stays above 4e-5.
const LOSS: f64 = 1e-9;
const TOLERANCE: f64 = 1e-9;

#[derive(Clone, Copy, Serialize)]
struct Recipe {
    lr: f64,
    batch: usize,
    batch_of_a_rank: usize,
    ranks: usize,
    warm_up: u64,
}

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    let mut all: Vec<(Recipe, (Numbers, Numbers))> = Vec::new();
    // The ratio of the batches is a whole number, a fraction, and whole without a warm-up.
    for (times, more, warms_up) in [(8, 0, true), (16, 1, true), (4, 0, false)] {
        let batch = 2 * random.below(2..5);
        let batch_of_a_rank = times * batch / RANKS + more;
        let ratio = (RANKS * batch_of_a_rank) as f64 / batch as f64;
        let lr = SCALED / ratio * (0.9 + 0.2 * random.below(0..101) as f64 / 100.0);
        let warm_up = if warms_up { random.below(15..25) as u64 } else { 0 };
        let recipe = Recipe { lr, batch, batch_of_a_rank, ranks: RANKS, warm_up };
        let steps = 40;
        let mut samples = || (0..steps * batch_of_a_rank).map(|_| 0.9 + random.below(0..201) as f64 / 1000.0).collect();
        let samples: Vec<Vec<f64>> = (0..RANKS).map(|_| samples()).collect();
        let outputs = runner.call::<_, (Numbers, Numbers)>(RANKS, &[(recipe, &samples)])?;
        all.push((recipe, outputs.of(0, 0).clone()));
    }
    // What a mistake gives in all steps of all recipes.
    let causes = causes(&MISTAKES, |mistake| {
        all.iter().all(|(recipe, (rates, _))| close(&recipe.rates(rates.len(), *mistake), rates, TOLERANCE))
    });
    all.iter().try_for_each(|(recipe, (rates, loss))| {
        check(recipe, rates, loss.first().copied().unwrap_or(f64::NAN), &causes)
    })
}

/// The rate of a step.
type Rate = fn(&Recipe, usize) -> f64;

impl Recipe {
    /// How many times as large the batch is now.
    fn times(&self) -> f64 {
        (self.batch_of_a_rank * self.ranks) as f64 / self.batch as f64
    }

    /// From this rate to the scaled one or another, of which `risen` is the part that the warm-up has added.
    fn rise(&self, step: usize, from: f64, to: f64, risen: fn(f64, f64) -> f64) -> f64 {
        let part = if step as u64 >= self.warm_up { 1.0 } else { risen(step as f64, self.warm_up as f64) };
        from + (to - from) * part
    }

    /// By the same amount in each step, from the recipe's own rate to so many times as much.
    fn rising(&self, step: usize, times: f64) -> f64 {
        self.rise(step, self.lr, self.lr * times, |step, steps| step / steps)
    }

    /// To the scaled rate, along another way.
    fn along(&self, step: usize, risen: fn(f64, f64) -> f64) -> f64 {
        self.rise(step, self.lr, self.lr * self.times(), risen)
    }

    fn rates(&self, steps: usize, rate: Rate) -> Vec<f64> {
        (0..steps).map(|step| rate(self, step)).collect()
    }
}

const ONE_EARLY: &str = "the scaled rate is there one step early: step 0 has the recipe's own rate, and step `warm_up` is the first with the scaled \
                         one";
const FROM_A_PART: &str =
    "the warm-up begins with a part of the scaled rate: begin with the recipe's own rate, which is known to work";

const MISTAKES: [(Rate, &str); 13] = [
    (
        |of, step| of.rising(step, of.times().floor()),
        "the ratio of the batches is rounded down: a division of integers drops the remainder. Convert before you divide",
    ),
    (
        |of, step| of.rising(step, of.times() / of.ranks as f64),
        "scaled by the batch of one rank: a step has the batches of all ranks, so multiply by their number",
    ),
    (
        |of, _| of.lr * of.times(),
        "the scaled rate from the first step on: where the training starts, the loss is too steep for it. Warm up",
    ),
    (
        |of, _| of.lr,
        "the recipe's own rate: with so few steps it does not get far. A batch that is so many times as large takes steps that are as many \
         times as long",
    ),
    (
        |of, step| of.rising(step, of.ranks as f64),
        "scaled by the number of ranks: what counts is the batch of all ranks, compared with the recipe's",
    ),
    (
        |of, step| of.rising(step, of.times().sqrt()),
        "scaled by the square root, which keeps the noise of a step the same and is in use for Adam: the linear rule multiplies by the ratio \
         of the batches",
    ),
    (
        |of, step| of.rise(step, 0.0, of.lr * of.times(), |step, steps| step / steps),
        "the warm-up begins with a rate of 0, so the first step does nothing: begin with the recipe's rate, which is known to work",
    ),
    (
        |of, step| {
            if (step as u64) < of.warm_up {
                of.lr * of.times().powf(step as f64 / of.warm_up as f64)
            } else {
                of.lr * of.times()
            }
        },
        "the rate rises by the same factor in each step: in a linear warm-up it rises by the same amount",
    ),
    (
        |of, step| of.along(step, |_, _| 0.0),
        "the rate stays the recipe's for the whole of the warm-up, and then jumps: it must rise by the same amount in each step",
    ),
    (|of, step| of.along(step, |step, steps| (step + 1.0) / steps), ONE_EARLY),
    (|of, step| of.along(step, |step, steps| step / (steps - 1.0)), ONE_EARLY),
    (|of, step| of.rise(step, 0.0, of.lr * of.times(), |step, steps| (step + 1.0) / steps), FROM_A_PART),
    (|of, step| of.rise(step, 0.0, of.lr * of.times(), |step, steps| (step + 1.0) / (steps + 1.0)), FROM_A_PART),
];

fn check(recipe: &Recipe, rates: &[f64], loss: f64, causes: &[&str]) -> anyhow::Result<()> {
    let Recipe { lr, batch, batch_of_a_rank, ranks, warm_up } = *recipe;
    let right = recipe.rates(rates.len(), |of, step| of.rising(step, of.times()));
    let given = format!(
        "rate {lr:.5} for batches of {batch}; now {} with batches of {batch_of_a_rank}, warm-up of {}",
        counted(ranks, "rank"),
        counted(warm_up, "step")
    );
    let shown = |rates: &[f64]| {
        let at = |step: usize| format!("step {step}: {:.5}", rates[step]);
        let mut steps = vec![0, 1, warm_up as usize, rates.len() - 1];
        steps.sort_unstable();
        steps.dedup();
        steps.into_iter().map(at).collect::<Vec<_>>().join(", ")
    };
    let with_warm_up = close(&right[..warm_up as usize], &rates[..warm_up as usize], TOLERANCE);
    Claim::that(close(&right, rates, TOLERANCE), shown(&right), shown(rates))
        .given(&given)
        .causes(causes)
        .diagnose_if(
            warm_up == 0 && rates.iter().any(|rate| rate.is_nan()),
            "the rate is NaN: without a warm-up, `step / warm_up` is 0 / 0. From step `warm_up` on, which is step 0 here, the rate is the \
             scaled one",
        )
        .diagnose_if(
            warm_up == 0 && rates.first() == Some(&lr),
            "without a warm-up the scaled rate begins with step 0: from step `warm_up` on, the rate is the scaled one",
        )
        .diagnose_if(
            with_warm_up && rates.last() > right.last(),
            "the rate rises beyond the end of the warm-up: it must stay at the scaled rate",
        )
        .or_fail(
            "the rate is the recipe's in step 0, rises by the same amount in each step, and is the scaled one from the warm-up's end on",
        )?;
    if warm_up == 0 {
        return Ok(());
    }
    Claim::that(loss < LOSS, format!("a loss below {LOSS:.0e}"), format!("{loss:.1e}"))
        .given(given)
        .or_fail("the rates are right, but the training has not learned with them")
}
