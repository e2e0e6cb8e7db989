//! Grades `accumulate`: the gradient against one large batch, and the operations, bytes and samples of a pass that it took.

use lockstep_grading::{Claim, Numbers, Runner, Verdict, close, counted};
use serde::Deserialize;

const RANKS: usize = 2;
/// Numbers of the model, of 8 bytes each.
const WEIGHTS: usize = 3;
const WEIGHT: f64 = 0.5;
const TOLERANCE: f64 = 1e-9;

/// Rows of inputs, and targets.
type Micro = (Vec<Vec<f64>>, Vec<f64>);

#[derive(Deserialize)]
struct Counted {
    /// The gradient, and the most forward passes without a backward pass, with the samples in them.
    result: (Numbers, u64, i64),
    calls: u64,
    bytes: u64,
}

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    let (passes, size) = (random.below(3..6), random.below(4..8));
    // The last micro-batch is smaller.
    let sizes: Vec<usize> = (1..=passes).map(|pass| if pass < passes { size } else { size - 2 }).collect();
    let mut micro =
        |size: usize| -> Micro { ((0..size).map(|_| random.numbers(WEIGHTS)).collect(), random.numbers(size)) };
    let ranks: Vec<Vec<Micro>> = (0..RANKS).map(|_| sizes.iter().map(|size| micro(*size)).collect()).collect();
    let outputs = runner.call::<_, Counted>(RANKS, &[&ranks])?;
    let given = format!("micro-batches of {sizes:?} samples on each of {RANKS} ranks");
    let all: Vec<&Counted> = outputs.all(0).collect();
    for (rank, found) in outputs.all(0).enumerate() {
        check_gradient(&given, &ranks, rank, &all)?;
        check_cost(&given, &sizes, rank, found)?;
    }
    Ok(())
}

/// The gradient of the mean squared error of some samples, times a share.
fn gradient(micro: &[Micro], share: impl Fn(&Micro) -> f64) -> Vec<f64> {
    let mut sum = vec![0.0; WEIGHTS];
    for batch @ (rows, targets) in micro {
        for (row, target) in rows.iter().zip(targets) {
            let error = row.iter().sum::<f64>() * WEIGHT - target;
            let share = share(batch) / targets.len() as f64;
            sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += 2.0 * error * x * share);
        }
    }
    sum
}

fn check_gradient(given: &str, ranks: &[Vec<Micro>], rank: usize, all: &[&Counted]) -> anyhow::Result<()> {
    let samples = |micro: &[Micro]| micro.iter().map(|(_, targets)| targets.len()).sum::<usize>() as f64;
    let whole = |micro: &[Micro]| gradient(micro, |(_, targets)| targets.len() as f64 / samples(micro));
    let mean = |of: &dyn Fn(&[Micro]) -> Vec<f64>| -> Vec<f64> {
        let each: Vec<Vec<f64>> = ranks.iter().map(|micro| of(micro)).collect();
        (0..WEIGHTS).map(|which| each.iter().map(|of| of[which]).sum::<f64>() / RANKS as f64).collect()
    };
    let found = all[rank];
    let is = |other: &[f64]| all.iter().all(|found| close(other, &found.result.0, TOLERANCE));
    let each_is =
        |of: &dyn Fn(usize) -> Vec<f64>| (0..RANKS).all(|rank| close(&of(rank), &all[rank].result.0, TOLERANCE));
    let passes = ranks[0].len();
    let own = each_is(&|rank| whole(&ranks[rank]));
    // The mean of the first micro-batches, and the rest of the rank alone.
    let of_first = |micro: &[Micro]| gradient(&micro[..1], |(_, targets)| targets.len() as f64 / samples(micro));
    let only_first = each_is(&|rank| {
        let (first, own, of_own) = (mean(&of_first), whole(&ranks[rank]), of_first(&ranks[rank]));
        (0..WEIGHTS).map(|which| first[which] + own[which] - of_own[which]).collect()
    });
    let added_up = is(&mean(&|micro| gradient(micro, |_| 1.0)));
    Claim::close(&mean(&whole), &found.result.0, TOLERANCE)
        .on_rank(rank)
        .given(given)
        .verdict(if own || only_first { Verdict::RanksDisagree } else { Verdict::WrongValue })
        .cause_if(
            own,
            "this is the rank's own gradient: nothing was exchanged, so the models drift apart. The last pass has to exchange",
        )
        .cause_if(
            only_first,
            "only the first pass has exchanged its gradient, and those after it were added on this rank alone: let the last pass run \
             outside of no_sync, since a pass exchanges all that was added up so far",
        )
        .cause_if(
            added_up && found.calls > 1,
            "the means of all micro-batches are added up, so the step is as many times too large as there are micro-batches; and gradients \
             are exchanged in each pass",
        )
        .cause_if(
            added_up && found.calls <= 1,
            "the means of all micro-batches are added up, so the step is as many times too large as there are micro-batches: weight each by \
             its share of the samples",
        )
        .cause_if(
            is(&mean(&|micro| gradient(micro, |_| 1.0 / passes as f64))),
            "each micro-batch has the same weight, so the samples of the last one, which has fewer, count for more than the others",
        )
        .cause_if(is(&mean(&|micro| whole(&micro[..passes - 1]))), "the last micro-batch is left out")
        .cause_if(
            is(&mean(&whole).iter().map(|number| number / RANKS as f64).collect::<Vec<_>>()),
            "this is divided by the number of ranks twice: DDP's exchange is a mean over the ranks already, so divide only by the rank's \
             own samples",
        )
        .cause_if(
            is(&mean(&|micro| gradient(micro, |(_, targets)| targets.len() as f64 / (micro[0].1.len() * passes) as f64))),
            "all micro-batches were counted with the length of the first, and the last one has fewer samples: divide by the sum of their \
             lengths",
        )
        .cause_if(
            is(&mean(&|micro| {
                let again = gradient(&micro[..1], |_| 1.0);
                whole(micro).iter().zip(&again).map(|(sum, again)| sum + again).collect()
            })),
            "the first micro-batch was taken again for the exchange, and its gradient was added once more: let the last pass exchange, or \
             one without samples",
        )
        .or_fail("this is not the gradient of one large batch")
}

fn check_cost(given: &str, sizes: &[usize], rank: usize, found: &Counted) -> anyhow::Result<()> {
    let bytes = 8 * WEIGHTS as u64;
    Claim::that(
        (found.calls, found.bytes) == (1, bytes),
        format!("1 operation with {bytes} bytes"),
        format!("{} with {} bytes", counted(found.calls, "operation"), found.bytes),
    )
    .on_rank(rank)
    .given(given)
    .diagnose_if(
        found.calls == sizes.len() as u64,
        "the gradient is right, and exchanged in each pass: DDP decides in the forward pass whether the backward pass exchanges, so both \
         belong in no_sync",
    )
    .or_fail("the gradient is right, but one exchange of it is enough")?;
    let most = sizes.iter().max().copied().unwrap_or(0) as i64;
    let (_, passes, samples) = found.result;
    Claim::that(
        passes <= 1 && samples <= most,
        format!("at most {} in 1 pass at a time", counted(most, "sample")),
        format!("{} in {}", counted(samples, "sample"), counted(passes, "pass")),
    )
    .on_rank(rank)
    .given(given)
    .diagnose_if(
        passes > 1,
        "the gradient is right, but a forward pass begins before the backward pass of the one before it: keeping the activations of all \
         takes as much memory as one large batch",
    )
    .or_fail("the gradient is right, but a pass takes more than one micro-batch, and the memory is too small for that")
}
