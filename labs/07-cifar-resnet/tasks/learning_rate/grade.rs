//! Grades `learning_rate`: the rates of single steps, for recipes that are scaled up, down and not at all.

use lockstep_grading::{Claim, Runner, counted, given};

/// The recipe's rate and batch, a rank's batch, the number of ranks, the steps of the warm-up.
type Recipe = (f64, usize, usize, usize, u64);

const TOLERANCE: f64 = 1e-9;

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    let rate = random.below(1..40) as f64 / 128.0;
    // Grown fourfold, a rate that rises by equal factors would be as large half way as one that rises from zero.
    let (ranks, warmup) = (random.below(5..9), 2 * random.below(5..50) as u64);
    let up: Recipe = (rate, 64, 32, 2 * ranks, warmup);
    // Between two whole multiples of the recipe's batch.
    let between: Recipe = (rate, 64, 36, ranks, warmup);
    let down: Recipe = (rate, 256, 16, ranks, warmup);
    let equal: Recipe = (rate, 32 * ranks, 32, ranks, warmup);
    let at_once: Recipe = (rate, 32, 32, ranks, 0);
    let steps = [warmup, 0, warmup / 2, warmup - 1, 1, warmup + 1, 10 * warmup];
    let inputs: Vec<(Recipe, u64)> =
        [up, between, down, equal, at_once].into_iter().flat_map(|recipe| steps.map(|step| (recipe, step))).collect();
    let shown = |case: usize| described(inputs[case].0, inputs[case].1);
    let outputs = runner.call::<_, Option<f64>>(1, &inputs).map_err(|error| given(error, shown))?;
    inputs.iter().enumerate().try_for_each(|(case, (recipe, step))| check(*recipe, *step, *outputs.of(0, case)))
}

/// Checks one rate. Long, because each known mistake is one diagnosis.
fn check(recipe: Recipe, step: u64, observed: Option<f64>) -> anyhow::Result<()> {
    let (rate, batch, batch_of_rank, ranks, warmup) = recipe;
    let given = described(recipe, step);
    let Some(observed) = observed else {
        return Claim::that(false, "a number", "not a number")
            .given(given)
            .or_fail("without a warm-up, do not divide by its steps: the rate is the scaled one from step 0 on");
    };
    let scaled = |by: usize, of: usize| rate * by as f64 / of as f64;
    let full = scaled(batch_of_rank * ranks, batch);
    let line = |from: f64, to: f64, step: u64| from + (to - from) * step as f64 / warmup as f64;
    let right = if step >= warmup || full <= rate { full } else { line(rate, full, step) };
    let is = |value: f64| (value - observed).abs() <= TOLERANCE;
    let rising = step < warmup && full > rate;
    let growth = full / rate;
    let whole = rate * (batch_of_rank * ranks / batch) as f64;
    let of_whole = if rising { line(rate, whole, step) } else { whole };
    Claim::close(&[right], &[observed], TOLERANCE)
        .given(given)
        .diagnose_if(
            !rising && is(rate) && full > rate,
            "the recipe's own rate, not scaled: with fewer steps per epoch, the network learns less per epoch than in the recipe",
        )
        .diagnose_if(
            !rising && is(scaled(batch_of_rank, batch)),
            "scaled by one rank's batch: use the batch of all ranks together",
        )
        .diagnose_if(
            !rising && is(scaled(ranks, 1)),
            "multiplied by the number of ranks: that is right only where a rank's batch is as large as the recipe's",
        )
        .diagnose_if(
            !rising && is(rate / growth),
            "scaled in the wrong direction: a larger batch needs a larger rate. Divide the batch of all ranks by the recipe's",
        )
        .diagnose_if(
            !rising && is(rate * growth.sqrt()),
            "multiplied by the square root of the growth of the batch: the linear rule multiplies by the growth itself",
        )
        .diagnose_if(
            rising && step > 0 && is(rate),
            "the recipe's own rate until the end of the warm-up: it must rise with each step. The quotient of two integers is an integer \
             in Rust, so `step / warmup` is 0 until then; convert both with `as f64` first",
        )
        .diagnose_if(
            rising && step > 0 && is(rate * growth.powf(step as f64 / warmup as f64)),
            "the rate rises by equal factors: along a line, each step of the warm-up adds the same amount",
        )
        .diagnose_if(
            rising && step > 0 && is(line(rate, rate + full, step)),
            "the rate rises beyond the scaled rate and falls back to it: the steps together must add the scaled rate minus the recipe's own",
        )
        .diagnose_if(
            rising && step > 0 && is(rate + (full - rate) * step as f64 / (warmup - 1) as f64),
            "the full rate one step early: it is reached at step `warmup`, not at the step before",
        )
        .diagnose_if(
            rising && is(line(0.0, full, step)),
            "warmed up from zero: start with the recipe's own rate, which is small enough for the first steps",
        )
        .diagnose_if(
            rising && (is(full * (step + 1) as f64 / warmup as f64) || is(full * (step + 1) as f64 / (warmup + 1) as f64)),
            "warmed up from a part of the scaled rate: start with the recipe's own rate, which is known to work",
        )
        .diagnose_if(rising && is(full), "no warm-up: the first steps use the full scaled rate")
        .diagnose_if(rising && is(line(rate, full, step + 1)), "one step early: step 0 uses the recipe's own rate")
        .diagnose_if(
            step > warmup && warmup > 0 && is(line(rate, full, step)),
            "the rate keeps rising after the warm-up: from then on it must stay at the scaled rate",
        )
        .diagnose_if(
            step < warmup && full < rate && is(line(rate, full, step)),
            "starts with a larger rate than the scaled one: with a smaller batch, do not warm up",
        )
        .diagnose_if(
            step >= warmup && full < rate && is(rate),
            "the recipe's own rate, although the batch is smaller than the recipe's: then the rate must be smaller, too",
        )
        .diagnose_if(
            batch_of_rank * ranks > batch && is(of_whole),
            format!(
                "the growth of the batch was rounded down to a whole number: it is {} / {batch}. In Rust the quotient of two integers is \
                 an integer; convert both with `as f64` first",
                batch_of_rank * ranks
            ),
        )
        .or_fail("this is not the rate of the linear scaling rule with warm-up")
}

fn described((rate, batch, batch_of_rank, ranks, warmup): Recipe, step: u64) -> String {
    format!(
        "step {step}; rate {rate} for batches of {batch}, {} with {batch_of_rank} each, a warm-up of {}",
        counted(ranks, "rank"),
        counted(warmup, "step")
    )
}
