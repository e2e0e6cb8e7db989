//! Task `batches`: with a remainder and without, and at the edges.

use lockstep_grading::{Claim, Stage};

type Batches = Vec<(usize, usize)>;

pub(crate) fn grade(stage: &mut Stage) -> anyhow::Result<()> {
    let mut random = stage.random();
    let (size, count) = (random.below(3..9), random.below(2..7));
    let rest = random.below(1..size);
    let cases = [(size * count + rest, size), (size * count, size), (size - 1, size), (count, 1), (0, size)];
    let outputs = stage.call::<_, Batches>(1, &cases)?;
    for (case, &(samples, size)) in cases.iter().enumerate() {
        judge(samples, size, outputs.of(0, case))?;
    }
    Ok(())
}

fn judge(samples: usize, size: usize, observed: &Batches) -> anyhow::Result<()> {
    let right: Batches = (0..samples).step_by(size).map(|begin| (begin, samples.min(begin + size))).collect();
    let full = &right[..samples / size];
    let covered: Vec<usize> = observed.iter().flat_map(|batch| batch.0..batch.1).collect();
    Claim::equal(&told(&right), &told(observed))
        .given(format!("{samples} samples, batch size {size}"))
        .knows(
            observed == full,
            "the samples that do not fill a batch are dropped, and always the same ones if nobody shuffles: the last batch may \
             have fewer",
        )
        .knows(
            covered.iter().any(|place| *place >= samples),
            format!("a batch goes beyond the last sample, {}: the last batch has only what is left", samples.saturating_sub(1)),
        )
        .knows(
            observed.iter().any(|batch| batch.0 >= batch.1),
            "there is an empty batch, whose mean loss is 0 divided by 0: where all batches are full there is no remainder",
        )
        .knows(
            covered.len() < samples,
            "some samples are in no batch",
        )
        .knows(
            covered.windows(2).any(|pair| pair[1] <= pair[0]),
            "some samples are in two batches",
        )
        .otherwise("not batches of the batch size, in order, and a last one with what is left")
}

/// As ranges are written.
fn told(batches: &[(usize, usize)]) -> Vec<std::ops::Range<usize>> {
    batches.iter().map(|batch| batch.0..batch.1).collect()
}
