//! Grades `best`: the epoch that each of three ranks keeps, with shares of different length and accuracy.

use lockstep_grading::{Claim, Finding, Runner, Verdict, explain};

/// By epoch and rank, the number of right predictions and of photographs.
type Epochs = Vec<Vec<(usize, usize)>>;
/// The best epoch after each epoch.
type Kept = Vec<Option<u64>>;
/// The same with its accuracy.
type Bests = Vec<Option<(u64, Option<f64>)>>;

/// Single precision is enough.
const TOLERANCE: f64 = 1e-6;

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let times = runner.random().below(1..6);
    let case = |shares: [usize; 3], rights: &[[usize; 3]]| -> Epochs {
        let of_epoch =
            |right: &[usize; 3]| right.iter().zip(shares).map(|(right, of)| (right * times, of * times)).collect();
        rights.iter().map(of_epoch).collect()
    };
    let cases = [
        // Over all ranks 17, 19, 22, 22, 21 of 35. The sums, each rank's own share and the mean of the shares choose different epochs.
        case([20, 10, 5], &[[10, 5, 2], [14, 4, 1], [12, 5, 5], [15, 5, 2], [13, 4, 4]]),
        case([20, 10, 0], &[[10, 5, 0], [11, 4, 0], [9, 8, 0]]),
    ];
    let outputs = runner.call::<_, Bests>(3, &cases).map_err(|error| explain(error, why))?;
    for (number, epochs) in cases.iter().enumerate() {
        let kept = |bests: &Bests| bests.iter().map(|best| best.map(|(epoch, _)| epoch)).collect();
        let all: Vec<Kept> = outputs.all(number).map(kept).collect();
        check(epochs, &all)?;
        outputs.all(number).enumerate().try_for_each(|(rank, bests)| check_accuracy(epochs, rank, bests))?;
    }
    Ok(())
}

fn ratio((right, of): (usize, usize)) -> f64 {
    right as f64 / of as f64
}

/// The right predictions and the photographs of all ranks.
fn sum(ranks: &[(usize, usize)]) -> (usize, usize) {
    ranks.iter().fold((0, 0), |sum, rank| (sum.0 + rank.0, sum.1 + rank.1))
}

/// Checks the accuracy of an epoch that is the right one.
fn check_accuracy(epochs: &Epochs, rank: usize, bests: &Bests) -> anyhow::Result<()> {
    // Of one epoch alone, this rank's own accuracy may be the highest one.
    let highest = |epoch: u64| epochs[epoch as usize].iter().copied().map(ratio).fold(0.0, f64::max);
    let all_are_highest = bests
        .iter()
        .flatten()
        .all(|&(epoch, seen)| seen.is_some_and(|seen| (highest(epoch) - seen).abs() <= TOLERANCE));
    for (after, best) in bests.iter().enumerate() {
        let Some((epoch, accuracy)) = *best else { continue };
        let (ranks, seen) = (&epochs[epoch as usize], accuracy.unwrap_or(f64::NAN));
        let (right, of) = sum(ranks);
        let is = |value: f64| (value - seen).abs() <= TOLERANCE;
        Claim::close(&[right as f64 / of as f64], &[seen], TOLERANCE)
            .on_rank(rank)
            .given(format!("right predictions of photographs, by rank, in epoch {epoch}: {ranks:?}; `accuracy` after epoch {after}"))
            .diagnose_if(
                is(right as f64),
                "`accuracy` holds the number of right predictions. It is the share of all photographs that were predicted correctly, from 0 \
                 to 1: a count cannot compare epochs with different numbers of photographs",
            )
            .diagnose_if(
                is(right as f64 / ranks[rank].1 as f64),
                "`accuracy` divides the right predictions of all ranks by the photographs of this rank alone: sum both, and divide once",
            )
            .diagnose_if(
                is(right as f64 / (ranks[rank].1 * ranks.len()) as f64),
                "`accuracy` divides by this rank's photographs, times the ranks: shares differ in length. Sum the photographs, too",
            )
            .diagnose_if(
                all_are_highest,
                "`accuracy` is the highest of the ranks' own: it says how good the model is on one share. Sum right predictions and \
                 photographs, and divide once",
            )
            .diagnose_if(
                is(ratio(ranks[rank])),
                "`accuracy` holds this rank's own, so each rank compares the next epoch with a different number",
            )
            .diagnose_if(
                is(right as f64 / of as f64 * 100.0),
                "`accuracy` is in percent: it goes from 0 to 1",
            )
            .or_fail("`accuracy` is not that of the best epoch over all ranks")?;
    }
    Ok(())
}

fn check(epochs: &Epochs, observed: &[Kept]) -> anyhow::Result<()> {
    let all = |ranks: &Vec<(usize, usize)>| ratio(sum(ranks));
    let mean = |ranks: &Vec<(usize, usize)>| ranks.iter().map(|rank| ratio(*rank)).sum::<f64>() / ranks.len() as f64;
    let right = kept(epochs.iter().map(all), false);
    let given = format!("right predictions of photographs, by epoch and rank: {epochs:?}");
    for (rank, seen) in observed.iter().enumerate() {
        let claim = Claim::equal(&right, seen).on_rank(rank).given(format!("{given}; the best epoch after each epoch"));
        let differ = observed.iter().any(|other| other != seen);
        let claim = if differ { claim.verdict(Verdict::RanksDisagree) } else { claim };
        let own = |of: usize| kept(epochs.iter().map(|ranks| ratio(ranks[of])), false);
        claim
            .diagnose_if(
                differ && *seen == own(rank),
                "each rank decides by its own share: they keep models of different epochs, and the file has the model of the rank that \
                 wrote last",
            )
            .diagnose_if(
                !differ && *seen == own(0),
                "rank 0's share decides for all ranks: the predictions of the other ranks do not count",
            )
            .diagnose_if(
                differ && seen.iter().all(Option::is_none),
                "this rank never updates `best`: all ranks hold the same model and make the same decision, including those that do not \
                 write the file",
            )
            .diagnose_if(
                differ && rank > 0 && observed[0] == right && !seen.iter().all(Option::is_none),
                "rank 0 keeps the right epochs, and this rank keeps others: `reduce` leaves the sums on one rank, and all ranks make the \
                 decision",
            )
            .diagnose_if(
                *seen == kept(epochs.iter().map(mean), false),
                "decided by the mean of the ranks' accuracies: a photograph in a short share weighs more. Sum right predictions and \
                 photographs, and divide once",
            )
            .diagnose_if(
                *seen == kept(epochs.iter().map(all), true),
                "of two equal epochs, the later one is kept: keep the first, or a resumed run decides differently from an uninterrupted one",
            )
            .or_fail("keep the epoch with the most right predictions over all ranks")?;
    }
    Ok(())
}

fn why(finding: &Finding) -> Option<String> {
    let waits = finding.table.iter().any(|line| line.contains("waits in"));
    let others = finding.table.iter().any(|line| !line.contains("waits in"));
    (finding.verdict == Verdict::Hang && waits && others).then(|| {
        "a rank waits in a collective that others do not call: sum first, on all ranks and in every epoch, and then decide. Whether a rank \
         makes the call must not depend on its own accuracy or number of photographs"
            .into()
    })
}

/// The best epoch after each epoch.
fn kept(accuracies: impl Iterator<Item = f64>, last_of_equals: bool) -> Kept {
    let mut best: Option<(u64, f64)> = None;
    let mut step = |(epoch, accuracy): (u64, f64)| {
        if best.is_none_or(|(_, best)| accuracy > best || last_of_equals && accuracy == best) {
            best = Some((epoch, accuracy));
        }
        best.map(|(epoch, _)| epoch)
    };
    (0..).zip(accuracies).map(&mut step).collect()
}
