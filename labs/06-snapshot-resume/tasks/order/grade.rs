//! Grades `order`: processes that train all epochs, and processes that begin with a later one.

use std::collections::BTreeSet;
use std::ops::Range;

use lockstep_grading::{Claim, Runner};

/// The epochs of a run from the beginning: more than a key that keeps only the epoch's last digit or a few of its bits can tell apart.
const EPOCHS: u64 = 24;

type Case = (u64, usize, Range<u64>);

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    // With 20 samples, two random orders are equal once in 10^18 times.
    let (samples, seed) = (random.below(20..30), random.below(1..1000) as u64);
    let begin = random.below(1..4) as u64;
    // Many runs have the seed 0.
    let full: [Case; 5] = [seed, seed + 1, 0, 1, 11].map(|seed| (seed, samples, 0..EPOCHS));
    let resumed: [Case; 2] = [(seed, samples, begin..EPOCHS), (seed, samples, EPOCHS - 1..EPOCHS)];
    let outputs = runner.call::<_, Vec<Vec<usize>>>(1, &full)?;
    // Each in a process of its own, as after a restart.
    let again = [runner.call::<_, Vec<Vec<usize>>>(1, &resumed[..1])?, runner.call(1, &resumed[1..])?];
    for (number, case) in full.iter().enumerate() {
        each_once(case, outputs.of(0, number))?;
    }
    for (case, outputs) in resumed.iter().zip(&again) {
        each_once(case, outputs.of(0, 0))?;
    }
    let whole = outputs.of(0, 0);
    differs(&full[0], whole)?;
    for (case, outputs) in resumed.iter().zip(&again) {
        continues(case, whole, outputs.of(0, 0))?;
    }
    differs(&full[1], outputs.of(0, 1))?;
    differs(&full[2], outputs.of(0, 2))?;
    let others = outputs.of(0, 1).iter().zip(outputs.of(0, 2));
    let same = whole.iter().zip(others).position(|(one, (next, zero))| one == next || one == zero);
    Claim::that(
        same.is_none(),
        "another seed, other orders",
        same.map(|epoch| same_orders(epoch, whole)).unwrap_or_default(),
    )
    .given(format!("seeds {seed}, {} and 0, {samples} samples, epochs 0 to {}", seed + 1, EPOCHS - 1))
    .diagnose_if(
        same == Some(0) && whole[1] != outputs.of(0, 1)[1],
        "in one epoch the seed has no effect: a product of seed and epoch is 0 for epoch 0. Give the key both numbers",
    )
    .or_fail("the seed is not used: all runs have the same orders")?;
    digits_apart(samples, outputs.of(0, 3), outputs.of(0, 4))
}

/// The orders of seed 1 must not be those of seed 11, ten epochs earlier, in some epochs only: in all of them they are if the key is the sum of seed
/// and epoch, as in PyTorch's sampler.
fn digits_apart(samples: usize, one: &[Vec<usize>], eleven: &[Vec<usize>]) -> anyhow::Result<()> {
    let pairs = || one[10..].iter().zip(eleven);
    let meet = pairs().position(|(one, eleven)| one == eleven).filter(|_| pairs().any(|(one, eleven)| one != eleven));
    Claim::that(
        meet.is_none(),
        "another seed, other orders",
        meet.map(|epoch| format!("epoch {} of seed 1 and epoch {epoch} of seed 11: {:?}", epoch + 10, eleven[epoch])).unwrap_or_default(),
    )
    .given(format!("seeds 1 and 11, {samples} samples, epochs 0 to {}", EPOCHS - 1))
    .or_fail("two pairs of seed and epoch have one key, such as their digits one after the other: keep the two numbers apart in it")
}

fn same_orders(epoch: usize, orders: &[Vec<usize>]) -> String {
    format!("epoch {epoch} has the order {:?} with two of the seeds", orders[epoch])
}

fn each_once(case: &Case, orders: &[Vec<usize>]) -> anyhow::Result<()> {
    let epochs = case.2.end - case.2.start;
    Claim::that(orders.len() as u64 == epochs, format!("{epochs} orders"), format!("{} orders", orders.len()))
        .given(given(case))
        .or_fail("return one order for each epoch")?;
    for (epoch, order) in case.2.clone().zip(orders) {
        let sorted: BTreeSet<usize> = order.iter().copied().collect();
        let each_once = order.len() == case.1 && sorted.into_iter().eq(0..case.1);
        Claim::that(each_once, format!("each number below {} once", case.1), format!("epoch {epoch}: {order:?}"))
            .given(given(case))
            .or_fail("an epoch must contain every sample once")?;
    }
    Ok(())
}

/// Each epoch must have an order of its own: not another epoch's order, nor that order from another sample on, nor backwards.
fn differs(case: &Case, orders: &[Vec<usize>]) -> anyhow::Result<()> {
    let pairs = || (0..orders.len()).flat_map(|later| (0..later).map(move |epoch| (epoch, later)));
    let forwards = |order: &[usize]| {
        let zero = order.iter().position(|sample| *sample == 0).unwrap_or(0);
        [&order[zero..], &order[..zero]].concat()
    };
    let backwards = |order: &[usize]| forwards(&order.iter().rev().copied().collect::<Vec<_>>());
    let from_zero: Vec<Vec<usize>> = orders.iter().map(|order| forwards(order)).collect();
    let Some((epoch, later)) = pairs().find(|(epoch, later)| {
        from_zero[*epoch] == from_zero[*later] || from_zero[*epoch] == backwards(&orders[*later])
    }) else {
        return Ok(());
    };
    let (one, other) = (&orders[epoch], &orders[later]);
    let all = orders.iter().all(|order| order == &orders[0]);
    let observed = if one == other {
        format!("both in the order {one:?}")
    } else {
        format!("epoch {epoch}: {one:?}, epoch {later}: {other:?}")
    };
    Claim::that(false, format!("epochs {epoch} and {later} in two random orders"), observed)
        .given(given(case))
        .diagnose_if(
            all && case.0 == 0,
            "with the seed 0 every epoch has the same order: a product of seed and epoch is 0 then. Give the key both numbers",
        )
        .diagnose_if(all, "every epoch has the same order: the epoch's number must be part of the generator's key, too")
        .diagnose_if(
            one == other,
            "two epochs have the same order: the key holds only a part of the epoch's number, such as its remainder",
        )
        .or_fail(
            "a later epoch has the order of an earlier one, from another sample on or backwards: the same samples meet in the same \
             batches. Shuffle each epoch with its own generator",
        )
}

/// A process that begins later must go on with the orders of the one that began with epoch 0.
fn continues(case: &Case, whole: &[Vec<usize>], observed: &[Vec<usize>]) -> anyhow::Result<()> {
    let begin = case.2.start as usize;
    let Some(at) = (0..observed.len()).find(|at| observed[*at] != whole[begin + at]) else { return Ok(()) };
    let (expected, seen) = (&whole[begin + at], &observed[at]);
    Claim::that(false, format!("epoch {}: {expected:?}", begin + at), format!("epoch {}: {seen:?}", begin + at))
        .given(given(case))
        .diagnose_if(
            observed[..] == whole[..observed.len()],
            format!(
                "resumed in epoch {begin}, the process draws the order of epoch 0: the result depends on how much it has drawn before, \
                 not on the epoch"
            ),
        )
        .diagnose_if(
            at == 0 && seen.iter().map(|place| whole[begin - 1][*place]).eq(expected.iter().copied()),
            format!(
                "epoch {begin} shuffles the order that epoch {} left, and a process that begins with epoch {begin} has none: begin each epoch with \
                 the numbers in their order",
                begin - 1
            ),
        )
        .or_fail(
            "a process that was started again draws other orders of the same epochs: an order must depend only on the seed and the epoch, and \
             neither on the process nor on where it began",
        )
}

fn given((seed, samples, epochs): &Case) -> String {
    let to = epochs.end - 1;
    match epochs.start {
        start if start == to => format!("seed {seed}, {samples} samples, epoch {to} alone"),
        start => format!("seed {seed}, {samples} samples, epochs {start} to {to}"),
    }
}
