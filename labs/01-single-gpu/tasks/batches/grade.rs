//! Grades `batches`: with a remainder, without one, and edge cases.

use lockstep_grading::{Claim, Runner};

type Batches = Vec<(usize, usize)>;

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    let (size, count) = (random.below(3..9), random.below(2..7));
    let rest = random.below(1..size);
    let cases = [(size * count + rest, size), (size * count, size), (size - 1, size), (count, 1), (0, size)];
    let outputs = runner.call::<_, Batches>(1, &cases)?;
    for (case, &(samples, size)) in cases.iter().enumerate() {
        check(samples, size, outputs.of(0, case))?;
    }
    Ok(())
}

fn check(samples: usize, size: usize, observed: &Batches) -> anyhow::Result<()> {
    let right: Batches = (0..samples).step_by(size).map(|begin| (begin, samples.min(begin + size))).collect();
    let full = &right[..samples / size];
    // Of a batch that goes far beyond the last sample, the first places show it.
    let places = |batch: &(usize, usize)| batch.0..batch.1.min(batch.0.saturating_add(samples + 1));
    let covered: Vec<usize> = observed.iter().flat_map(places).collect();
    let times = |sample: usize| covered.iter().filter(|place| **place == sample).count();
    Claim::equal(&ranges(&right), &ranges(observed))
        .given(format!("{samples} samples, batch size {size}"))
        .diagnose_if(
            observed == full,
            "the last samples do not fill a batch and are dropped, without shuffling always the same ones: the last batch may be smaller",
        )
        .diagnose_if(
            covered.iter().any(|place| *place >= samples),
            format!("a batch goes beyond the last sample, {}: the last batch has only the remaining samples", samples.saturating_sub(1)),
        )
        .diagnose_if(
            observed.iter().any(|batch| batch.0 >= batch.1),
            "there is an empty batch, whose mean loss is 0 / 0: if all batches are full, do not add another one",
        )
        .diagnose_if((0..samples).any(|sample| times(sample) == 0), "some samples are missing from the batches")
        .diagnose_if((0..samples).any(|sample| times(sample) > 1), "some samples are in two batches")
        .diagnose_if(!covered.is_sorted(), "each sample is in one batch, but the batches are not in order")
        .or_fail("the batches must be in order and have the batch size; the last one has the remaining samples")
}

/// The batches as ranges, which is how learners write them.
fn ranges(batches: &[(usize, usize)]) -> Vec<std::ops::Range<usize>> {
    batches.iter().map(|batch| batch.0..batch.1).collect()
}
