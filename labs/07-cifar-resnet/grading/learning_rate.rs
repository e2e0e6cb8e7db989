//! Task `learning_rate`: rates of single steps, for recipes that are scaled up, down and not at all.

use lockstep_grading::{Claim, Stage};

/// Rate and batch of the recipe, a rank's batch, ranks, steps of the warm-up.
type Recipe = (f64, usize, usize, usize, u64);

const TOLERANCE: f64 = 1e-9;

pub(crate) fn grade(stage: &mut Stage) -> anyhow::Result<()> {
    let mut random = stage.random();
    let rate = random.below(1..40) as f64 / 128.0;
    let (ranks, warmup) = (random.below(4..9), 2 * random.below(5..50) as u64);
    let up: Recipe = (rate, 64, 32, 2 * ranks, warmup);
    let down: Recipe = (rate, 256, 16, ranks, warmup);
    let equal: Recipe = (rate, 32 * ranks, 32, ranks, warmup);
    let at_once: Recipe = (rate, 32, 32, ranks, 0);
    let steps = [warmup, 0, warmup / 2, warmup - 1, 1, warmup + 1, 10 * warmup];
    let inputs: Vec<(Recipe, u64)> =
        [up, down, equal, at_once].into_iter().flat_map(|recipe| steps.map(|step| (recipe, step))).collect();
    let outputs = stage.call::<_, Option<f64>>(1, &inputs)?;
    inputs.iter().enumerate().try_for_each(|(case, (recipe, step))| judge(*recipe, *step, *outputs.of(0, case)))
}

fn judge(recipe: Recipe, step: u64, observed: Option<f64>) -> anyhow::Result<()> {
    let (rate, batch, batch_of_rank, ranks, warmup) = recipe;
    let given = format!(
        "step {step}; rate {rate} for batches of {batch}, {ranks} ranks with {batch_of_rank} each, a warm-up of {warmup} steps"
    );
    let Some(observed) = observed else {
        return Claim::that(false, "a number", "not a number")
            .given(given)
            .otherwise("without a warm-up there is no line to divide by: the rate is the scaled one from step 0 on");
    };
    let scaled = |by: usize, of: usize| rate * by as f64 / of as f64;
    let full = scaled(batch_of_rank * ranks, batch);
    let line = |from: f64, to: f64, step: u64| from + (to - from) * step as f64 / warmup as f64;
    let right = if step >= warmup || full <= rate { full } else { line(rate, full, step) };
    let is = |value: f64| (value - observed).abs() <= TOLERANCE;
    let rising = step < warmup && full > rate;
    Claim::close(&[right], &[observed], TOLERANCE)
        .given(given)
        .knows(
            !rising && is(rate) && full > rate,
            "the recipe's own rate, not scaled: the network moves less in an epoch than the recipe's",
        )
        .knows(
            !rising && is(scaled(batch_of_rank, batch)),
            "scaled by one rank's batch: what counts is the batch of all ranks together",
        )
        .knows(
            !rising && is(scaled(ranks, 1)),
            "multiplied by the number of ranks: that is right only where a rank's batch is as large as the recipe's",
        )
        .knows(
            rising && is(line(0.0, full, step)),
            "warmed up from zero: the recipe's own rate is one that the first steps can bear, begin with that",
        )
        .knows(rising && is(full), "no warm-up: the first steps are trained with the whole scaled rate")
        .knows(rising && is(line(rate, full, step + 1)), "a step early: step 0 is trained with the recipe's own rate")
        .knows(
            step > warmup && warmup > 0 && is(line(rate, full, step)),
            "the line goes on after the warm-up: from its last step on the rate is the scaled one",
        )
        .knows(
            step < warmup && full < rate && is(line(rate, full, step)),
            "begins with a larger rate than the scaled one: for a smaller batch there is nothing to warm up to",
        )
        .otherwise("not the rate of the linear scaling rule with its warm-up")
}
