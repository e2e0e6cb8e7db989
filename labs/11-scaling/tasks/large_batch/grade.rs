//! Grades `large_batch`: the rate of each step, and what a training on two ranks makes of it.

use lockstep_grading::{Claim, Numbers, Runner, close, counted};
use serde::Serialize;

const RANKS: usize = 2;
/// The training's scaled rate: stable near the end of the training, and far from it at its start.
const SCALED: f64 = 0.2;
/// With the rates that are right the loss ends below 1e-27; at the recipe's own it stays above 4e-5.
const LOSS: f64 = 1e-9;

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
        let (rates, loss) = outputs.of(0, 0);
        check(recipe, rates, loss.first().copied().unwrap_or(f64::NAN))?;
    }
    Ok(())
}

fn check(recipe: Recipe, rates: &[f64], loss: f64) -> anyhow::Result<()> {
    let Recipe { lr, batch, batch_of_a_rank, ranks, warm_up } = recipe;
    let times = (batch_of_a_rank * ranks) as f64 / batch as f64;
    let ramp = |from: f64, to: f64, risen: &dyn Fn(f64, f64) -> f64| -> Vec<f64> {
        let part = |step: usize| if step as u64 >= warm_up { 1.0 } else { risen(step as f64, warm_up as f64) };
        (0..rates.len()).map(|step| from + (to - from) * part(step)).collect()
    };
    let rising = |from: f64, to: f64| ramp(from, to, &|step, steps| step / steps);
    let along = |risen: &dyn Fn(f64, f64) -> f64| ramp(lr, lr * times, risen);
    let is = |other: &[f64]| close(other, rates, 1e-9);
    let constant = |rate: f64| vec![rate; rates.len()];
    let right = rising(lr, lr * times);
    let ends = format!("the loss ends at {loss:.1e}");
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
    let with_warm_up = close(&right[..warm_up as usize], &rates[..warm_up as usize], 1e-9);
    Claim::that(is(&right), shown(&right), shown(rates))
        .given(&given)
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
            times.fract() > 0.0 && is(&rising(lr, lr * times.floor())),
            format!(
                "the batches' ratio is {times:.3}, and here it is {:.0}: a division of integers drops the remainder. Convert before you \
                 divide",
                times.floor()
            ),
        )
        .diagnose_if(
            is(&rising(lr, lr * batch_of_a_rank as f64 / batch as f64)),
            "scaled by the batch of one rank: a step has the batches of all ranks, so multiply by their number",
        )
        .diagnose_if(
            is(&constant(lr * times)),
            format!("the scaled rate from the first step on: where the training starts the loss is too steep for it, and {ends}. Warm up"),
        )
        .diagnose_if(
            is(&constant(lr)),
            format!("the recipe's own rate: with so few steps it does not get far, and {ends}. A batch that is {times:.1} times as large \
                     takes steps that are {times:.1} times as long"),
        )
        .diagnose_if(
            is(&rising(lr, lr * ranks as f64)),
            "scaled by the number of ranks: what counts is the batch of all ranks, compared with the recipe's",
        )
        .diagnose_if(
            is(&rising(lr, lr * times.sqrt())),
            "scaled by the square root, which keeps the noise of a step the same and is in use for Adam: the linear rule multiplies by the \
             ratio of the batches",
        )
        .diagnose_if(
            is(&rising(0.0, lr * times)),
            "the warm-up begins with a rate of 0, so the first step does nothing: begin with the recipe's rate, which is known to work",
        )
        .diagnose_if(
            is(&along(&|step, steps| (times.powf(step / steps) - 1.0) / (times - 1.0))),
            "the rate rises by the same factor in each step: in a linear warm-up it rises by the same amount",
        )
        .diagnose_if(
            is(&along(&|_, _| 0.0)),
            "the rate stays the recipe's for the whole of the warm-up, and then jumps: it must rise by the same amount in each step",
        )
        .diagnose_if(
            is(&along(&|step, steps| (step + 1.0) / steps)) || is(&along(&|step, steps| step / (steps - 1.0))),
            "the scaled rate is there one step early: step 0 has the recipe's own rate, and step `warm_up` is the first with the scaled \
             one",
        )
        .diagnose_if(
            [0.0, 1.0].iter().any(|more| {
                is(&(0..rates.len()).map(|at| lr * times * ((at as f64 + 1.0) / (warm_up as f64 + more)).min(1.0)).collect::<Vec<_>>())
            }),
            "the warm-up begins with a part of the scaled rate: begin with the recipe's own rate, which is known to work",
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
