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
    for (number, of_recipe) in inputs.chunks(steps.len()).enumerate() {
        let rates: Vec<(u64, Option<f64>)> =
            (0..).zip(of_recipe).map(|(at, (_, step))| (*step, *outputs.of(0, number * steps.len() + at))).collect();
        check(of_recipe[0].0, &rates)?;
    }
    Ok(())
}

/// Checks the rates of one recipe, by step.
fn check(recipe: Recipe, rates: &[(u64, Option<f64>)]) -> anyhow::Result<()> {
    let (rate, batch, batch_of_rank, ranks, warmup) = recipe;
    let scaled = |by: usize, of: usize| rate * by as f64 / of as f64;
    let full = scaled(batch_of_rank * ranks, batch);
    let line = |from: f64, to: f64, step: u64| from + (to - from) * step as f64 / warmup as f64;
    // The rate at a step, if this one is the scaled rate.
    let right = |full: f64, step: u64| if step >= warmup || full <= rate { full } else { line(rate, full, step) };
    let causes = causes(recipe, rates);
    for &(step, observed) in rates {
        let given = described(recipe, step);
        let Some(observed) = observed else {
            return Claim::that(false, "a number", "not a number")
                .given(given)
                .diagnose_if(
                    warmup == 0,
                    "without a warm-up, do not divide by its steps: the rate is the scaled one from step 0 on",
                )
                .or_fail("the rate must be a number");
        };
        let claim = Claim::close(&[right(full, step)], &[observed], TOLERANCE).given(given);
        claim.causes(&causes).or_fail("this is not the rate of the linear scaling rule with warm-up")?;
    }
    Ok(())
}

/// The mistakes that give all rates of this recipe. Long, because each known mistake is one diagnosis.
fn causes((rate, batch, batch_of_rank, ranks, warmup): Recipe, rates: &[(u64, Option<f64>)]) -> Vec<String> {
    let scaled = |by: usize, of: usize| rate * by as f64 / of as f64;
    let full = scaled(batch_of_rank * ranks, batch);
    let growth = full / rate;
    let part = |step: u64| step as f64 / warmup as f64;
    let line = |from: f64, to: f64, step: u64| from + (to - from) * part(step);
    let all_are = |mistake: &dyn Fn(u64) -> f64| {
        rates.iter().all(|(step, seen)| seen.is_some_and(|seen| (mistake(*step) - seen).abs() <= TOLERANCE))
    };
    // Another scaled rate, or another way to it from the recipe's own.
    let scaled_to =
        |full: f64| all_are(&|step| if step >= warmup || full <= rate { full } else { line(rate, full, step) });
    let rises =
        |way: &dyn Fn(u64) -> f64| all_are(&|step| if step >= warmup || full <= rate { full } else { way(step) });
    let whole = rate * (batch_of_rank * ranks / batch) as f64;
    let found = [
        (
            full > rate && scaled_to(rate),
            "the recipe's own rate, not scaled: with fewer steps per epoch, the network learns less per epoch than in the recipe",
        ),
        (scaled_to(scaled(batch_of_rank, batch)), "scaled by one rank's batch: use the batch of all ranks together"),
        (
            scaled_to(scaled(ranks, 1)),
            "multiplied by the number of ranks: that is right only where a rank's batch is as large as the recipe's",
        ),
        (
            scaled_to(rate / growth),
            "scaled in the wrong direction: a larger batch needs a larger rate. Divide the batch of all ranks by the recipe's",
        ),
        (
            scaled_to(rate * growth.sqrt()),
            "multiplied by the square root of the growth of the batch: the linear rule multiplies by the growth itself",
        ),
        (
            rises(&|_| rate),
            "the recipe's own rate until the end of the warm-up: it must rise with each step. The quotient of two integers is an integer \
             in Rust, so `step / warmup` is 0 until then; convert both with `as f64` first",
        ),
        (
            rises(&|step| rate * growth.powf(part(step))),
            "the rate rises by equal factors: along a line, each step of the warm-up adds the same amount",
        ),
        (
            rises(&|step| line(rate, rate + full, step)),
            "the rate rises beyond the scaled rate and falls back to it: the steps together must add the scaled rate minus the recipe's own",
        ),
        (
            rises(&|step| rate + (full - rate) * step as f64 / (warmup.max(2) - 1) as f64),
            "the full rate one step early: it is reached at step `warmup`, not at the step before",
        ),
        (
            rises(&|step| line(0.0, full, step)),
            "warmed up from zero: start with the recipe's own rate, which is small enough for the first steps",
        ),
        (
            [warmup, warmup + 1].iter().any(|steps| rises(&|step| full * (step + 1) as f64 / *steps as f64)),
            "warmed up from a part of the scaled rate: start with the recipe's own rate, which is known to work",
        ),
        (all_are(&|_| full), "no warm-up: the first steps use the full scaled rate"),
        (rises(&|step| line(rate, full, step + 1)), "one step early: step 0 uses the recipe's own rate"),
        (
            warmup > 0 && all_are(&|step| line(rate, full, step)),
            "the rate keeps rising after the warm-up: from then on it must stay at the scaled rate",
        ),
        (
            full < rate && all_are(&|step| if step < warmup { line(rate, full, step) } else { full }),
            "starts with a larger rate than the scaled one: with a smaller batch, do not warm up",
        ),
        (
            full < rate && all_are(&|_| rate),
            "the recipe's own rate, although the batch is smaller than the recipe's: then the rate must be smaller, too",
        ),
    ];
    let rounded = format!(
        "the growth of the batch was rounded down to a whole number: it is {} / {batch}. In Rust the quotient of two integers is an \
         integer; convert both with `as f64` first",
        batch_of_rank * ranks
    );
    let found = found.into_iter().filter(|(gives_it, _)| *gives_it).map(|(_, words)| words.to_owned());
    found.chain((batch_of_rank * ranks > batch && scaled_to(whole)).then_some(rounded)).collect()
}

fn described((rate, batch, batch_of_rank, ranks, warmup): Recipe, step: u64) -> String {
    format!(
        "step {step}; rate {rate} for batches of {batch}, {} with {batch_of_rank} each, a warm-up of {}",
        counted(ranks, "rank"),
        counted(warmup, "step")
    )
}
