//! Grades `order`: a process that trains all epochs, and processes that begin with a later one.

use std::ops::Range;

use lockstep_grading::{Claim, Runner};

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    // With 20 samples, two random orders are equal once in 10^18 times.
    let (samples, seed) = (random.below(20..40), random.below(1..1000) as u64);
    let begin = random.below(1..4) as u64;
    let cases: [(u64, usize, Range<u64>); 4] =
        [(seed, samples, 0..5), (seed, samples, begin..5), (seed, samples, 4..5), (seed + 1, samples, 0..5)];
    let outputs = runner.call::<_, Vec<Vec<usize>>>(1, &cases)?;
    let [whole, resumed, last, other] = std::array::from_fn(|case| outputs.of(0, case));
    for (case, orders) in cases.iter().zip([whole, resumed, last, other]) {
        each_once(case, orders)?;
    }
    Claim::that(whole[0] != whole[1], "epochs 0 and 1 in two orders", format!("both in the order {:?}", whole[0]))
        .given(given(&cases[0]))
        .or_fail("every epoch has the same order: the epoch's number must be part of the generator's key, too")?;
    for (case, observed) in [(&cases[1], resumed), (&cases[2], last)] {
        let expected = &whole[case.2.start as usize..];
        Claim::equal(expected, observed)
            .given(given(case))
            .diagnose_if(
                observed[..] == whole[..observed.len()],
                format!(
                    "resumed in epoch {}, the process draws the order of epoch 0: the result depends on how much it has drawn \
                     before, not on the epoch",
                    case.2.start
                ),
            )
            .or_fail("a process that begins with a later epoch draws different orders than one that began with epoch 0")?;
    }
    Claim::that(whole != other, "another seed, other orders", "the same orders")
        .given(format!("{}, and seed {}", given(&cases[0]), seed + 1))
        .or_fail("the seed is not used: all runs have the same orders")
}

fn each_once(case: &(u64, usize, Range<u64>), orders: &[Vec<usize>]) -> anyhow::Result<()> {
    let epochs = case.2.end - case.2.start;
    Claim::equal(&(epochs as usize), &orders.len()).given(given(case)).or_fail("return one order for each epoch")?;
    for order in orders {
        let mut sorted = order.clone();
        sorted.sort_unstable();
        let each_once = sorted.iter().copied().eq(0..case.1);
        Claim::that(each_once, format!("each number below {} once", case.1), format!("{order:?}"))
            .given(given(case))
            .or_fail("an epoch must contain every sample once")?;
    }
    Ok(())
}

fn given((seed, samples, epochs): &(u64, usize, Range<u64>)) -> String {
    format!("seed {seed}, {samples} samples, epochs {} to {}", epochs.start, epochs.end - 1)
}
