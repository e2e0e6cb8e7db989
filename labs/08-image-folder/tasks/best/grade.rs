//! Grades `best`: the epoch that each of three ranks keeps, with shares of different length and accuracy.

use lockstep_grading::{Claim, Finding, IN_NO_CALL, Runner, Verdict, counted, explain, given, joined};

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
        // The first epoch is kept, although it has no success.
        case([20, 10, 5], &[[0, 0, 0], [0, 0, 0], [4, 1, 2], [3, 1, 2]]),
    ];
    let outputs = runner
        .call::<_, Bests>(3, &cases)
        .map_err(|error| given(explain(error, |finding| why(finding, &cases)), |case| text(&cases[case])))?;
    let kept_by_ranks = |number: usize| -> Vec<Kept> {
        outputs.all(number).map(|bests| bests.iter().map(|best| best.map(|(epoch, _)| epoch)).collect()).collect()
    };
    let all: Vec<Vec<Kept>> = (0..cases.len()).map(kept_by_ranks).collect();
    for (number, epochs) in cases.iter().enumerate() {
        check(&cases, &all, number)?;
        outputs.all(number).enumerate().try_for_each(|(rank, bests)| check_accuracy(epochs, rank, bests))?;
    }
    Ok(())
}

fn text(epochs: &Epochs) -> String {
    let of_rank = |(right, of): &(usize, usize)| format!("{right} of {of}");
    let of_epoch = |(epoch, ranks): (usize, &Vec<(usize, usize)>)| {
        format!("epoch {epoch}: {}", joined(&ranks.iter().map(of_rank).collect::<Vec<_>>(), ", "))
    };
    let rows: Vec<String> = epochs.iter().enumerate().map(of_epoch).collect();
    format!("right predictions of photographs, by rank\n{}", joined(&rows, "\n"))
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

/// What a rank compares, of the ranks' counts of an epoch and its own number.
type Measure = fn(&[(usize, usize)], usize) -> f64;

fn check(cases: &[Epochs], all: &[Vec<Kept>], number: usize) -> anyhow::Result<()> {
    let (epochs, observed) = (&cases[number], &all[number]);
    let of_all = |ranks: &[(usize, usize)], _: usize| ratio(sum(ranks));
    let own = |ranks: &[(usize, usize)], rank: usize| ratio(ranks[rank]);
    let of_rank_0 = |ranks: &[(usize, usize)], _: usize| ratio(ranks[0]);
    let mean =
        |ranks: &[(usize, usize)], _: usize| ranks.iter().map(|rank| ratio(*rank)).sum::<f64>() / ranks.len() as f64;
    // Whether all ranks keep the epochs that are the best by this measure, in all cases.
    let all_decide_by = |by: Measure, last_of_equals: bool| {
        cases.iter().zip(all).all(|(epochs, observed)| {
            let by_rank = |rank: usize| kept(epochs.iter().map(|ranks| by(ranks, rank)), last_of_equals);
            observed.iter().enumerate().all(|(rank, seen)| *seen == by_rank(rank))
        })
    };
    let right = kept(epochs.iter().map(|ranks| of_all(ranks, 0)), false);
    let given = format!("{}\nexpected and observed are the best epoch after each epoch", text(epochs));
    for (rank, seen) in observed.iter().enumerate() {
        let claim = Claim::equal(&right, seen).on_rank(rank).given(&given);
        let differ = observed.iter().any(|other| other != seen);
        let claim = if differ { claim.verdict(Verdict::RanksDisagree) } else { claim };
        let first = right.iter().zip(seen).position(|(right, seen)| right != seen).unwrap_or(0);
        claim
            .cause_if(
                all_decide_by(own, false),
                "each rank decides by its own share: they keep models of different epochs, and the file has the model of the rank that \
                 wrote last",
            )
            .cause_if(
                all_decide_by(of_rank_0, false),
                "rank 0's share decides for all ranks: the predictions of the other ranks do not count",
            )
            .cause_if(
                all_decide_by(mean, false),
                "decided by the mean of the ranks' accuracies: a photograph in a short share weighs more. Sum right predictions and \
                 photographs, and divide once",
            )
            .cause_if(
                all_decide_by(of_all, true),
                "of two equal epochs, the later one is kept: keep the first, or a resumed run decides differently from an uninterrupted one",
            )
            .diagnose_if(
                differ && seen.iter().all(Option::is_none),
                "this rank never updates `best`: all ranks hold the same model and make the same decision, including those that do not \
                 write the file",
            )
            .diagnose_if(
                differ && rank > 0 && all.iter().zip(cases).all(|(observed, epochs)| observed[0] == kept(epochs.iter().map(|ranks| of_all(ranks, 0)), false)),
                "rank 0 keeps the right epochs, and this rank keeps others. All ranks make the decision, so all need the sums: `reduce` \
                 leaves them on one rank",
            )
            .diagnose_if(
                seen[0].is_none(),
                "there is no best epoch yet after the first one: it is the best so far, even with an accuracy of 0",
            )
            .diagnose_if(
                right.iter().zip(seen).all(|(right, seen)| right == seen || is_equal(epochs, *right, *seen)),
                "of two equal epochs, not the first one is kept: keep the first, or a resumed run decides differently from an uninterrupted \
                 one",
            )
            .or_fail(format!(
                "the first difference is after epoch {first}: keep the epoch with the most right predictions of all photographs, over all ranks"
            ))?;
    }
    Ok(())
}

/// Returns true if both epochs have the same accuracy.
fn is_equal(epochs: &Epochs, one: Option<u64>, other: Option<u64>) -> bool {
    let accuracy = |epoch: u64| epochs.get(epoch as usize).map(|ranks| ratio(sum(ranks)));
    one.zip(other).is_some_and(|(one, other)| accuracy(one) == accuracy(other))
}

/// Counts the calls that the ranks have made, where some wait in one and others have ended the epoch without it.
fn why(finding: &Finding, cases: &[Epochs]) -> Option<String> {
    let number = |line: &str, before: &str| line.split_once(before)?.1.split([',', ' ']).next()?.parse::<usize>().ok();
    let waits: Vec<(usize, usize, &str)> = (0..)
        .zip(&finding.table)
        .filter_map(|(rank, line)| Some((rank, number(line, ": waits in call ")?, line.split_once(", ")?.1)))
        .collect();
    let ended: Vec<(usize, usize)> = (0..)
        .zip(&finding.table)
        .filter_map(|(rank, line)| Some((rank, number(line.split_once(IN_NO_CALL)?.1, ", after ")?)))
        .collect();
    let (&(_, call, operation), &(_, made)) = (waits.first()?, ended.first()?);
    let same = waits.iter().all(|wait| wait.1 == call) && ended.iter().all(|ended| ended.1 == made);
    if finding.verdict != Verdict::Hang || !same || made + 1 != call || waits.len() + ended.len() != finding.table.len()
    {
        return None;
    }
    let names = |ranks: &[usize]| format!("rank {}", joined(ranks, " and rank "));
    let waiting: Vec<usize> = waits.iter().map(|wait| wait.0).collect();
    let absent: Vec<usize> = ended.iter().map(|ended| ended.0).collect();
    let epochs = finding.input.and_then(|case| cases.get(case))?;
    let without_any = absent.iter().all(|rank| epochs.iter().all(|ranks| ranks[*rank].1 == 0));
    let what = if without_any { ", without photographs," } else { "" };
    Some(format!(
        "{} in call {call} ({operation}), and {}{what} ended the epoch after {}: a rank that leaves out a collective stops the others. Whether \
         a rank calls it must not depend on what it alone knows, such as its own accuracy or number of photographs: sum first, on all ranks \
         and in every epoch, and then decide",
        match waiting.len() {
            1 => format!("{} waits", names(&waiting)),
            _ => format!("{} wait", names(&waiting)),
        },
        names(&absent),
        counted(made, "call"),
    ))
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
