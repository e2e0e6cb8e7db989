//! Task `ring_all_reduce`: tensors of any length on 3, 4 and 1 ranks, and how much each rank sends.

use lockstep_grading::{Claim, Numbers, Stage, Verdict, explain};
use serde::Deserialize;

#[derive(Deserialize)]
struct Reduced {
    numbers: Numbers,
    /// How many elements the rank has sent.
    sent: usize,
}

/// What the second half of a ring all-reduce does with a chunk that comes.
#[derive(Clone, Copy, PartialEq)]
enum Half {
    Left,
    Adds,
}

pub(crate) fn grade(stage: &mut Stage) -> anyhow::Result<()> {
    let mut random = stage.random();
    for ranks in [3, 4, 1] {
        // A length that leaves something over, one that does not, and one below the number of ranks.
        let lengths = [ranks * random.below(2..6) + ranks.min(2) - 1, ranks * random.below(1..4), (ranks - 1).max(1)];
        let mut of_rank = |rank: usize, length| -> Vec<f64> {
            random.numbers(length).iter().map(|value| f64::from(10 * 3_u32.pow(rank as u32)) + value).collect()
        };
        let cases = lengths.map(|length| (0..ranks).map(|rank| of_rank(rank, length)).collect::<Vec<_>>());
        let outputs = stage.call::<_, Reduced>(ranks, &cases).map_err(|error| {
            explain(error, |fault| {
                let sizes = ["must match the size", "match the broadcast shape", "size of tensor"];
                let differ = fault.verdict == Verdict::Crash && sizes.iter().any(|words| fault.diagnosis.contains(words));
                differ.then(|| {
                    format!(
                        "a chunk came that is not as long as the one it was put to: chunks have unequal lengths, so in each \
                         step the number of the chunk that comes must be the one which the previous rank sends. {}",
                        fault.diagnosis
                    )
                })
            })
        })?;
        for (case, given) in cases.iter().enumerate() {
            for (rank, reduced) in outputs.all(case).enumerate() {
                judge(rank, given, &reduced.numbers)?;
            }
            for (rank, reduced) in outputs.all(case).enumerate() {
                judge_traffic(rank, given, reduced.sent)?;
            }
        }
    }
    Ok(())
}

fn judge(rank: usize, given: &[Vec<f64>], observed: &[f64]) -> anyhow::Result<()> {
    let (ranks, length) = (given.len(), given[0].len());
    let expected: Vec<f64> = (0..length).map(|place| given.iter().map(|of| of[place]).sum()).collect();
    let even = length - length % ranks;
    let right = observed.iter().zip(&expected).filter(|(observed, expected)| observed == expected).count();
    let wrong_only = |range: std::ops::Range<usize>| {
        (0..length).all(|place| (observed.get(place) == Some(&expected[place])) != range.contains(&place))
    };
    Claim::equal(&expected[..], observed)
        .on_rank(rank)
        .given(format!("{length} numbers on each of {ranks} ranks: {given:?}"))
        .knows(observed == &given[rank][..] && even > 0, "this is the rank's own tensor: nothing was added up")
        .knows(
            observed == &simulated(given, Half::Left)[rank][..],
            "only one chunk is finished, and the others are sums that stopped on the way: after the reduce-scatter every rank \
             has one finished chunk, and an all-gather brings them to all",
        )
        .knows(
            observed == &simulated(given, Half::Adds)[rank][..],
            "in the second half finished chunks were added to sums that had stopped on the way: they replace them",
        )
        .knows(
            even < length && wrong_only(even..length),
            format!(
                "the last {} of {length} elements were left as they were: where the length is no multiple of the number of ranks, some \
                 chunks are longer",
                length - even
            ),
        )
        .knows(
            right > 0,
            format!(
                "{right} of {length} elements are right: follow one chunk around the ring, and look which number it has on each \
                 rank"
            ),
        )
        .otherwise("not the sum over all ranks")
}

/// A right sum may have come at too high a price.
fn judge_traffic(rank: usize, given: &[Vec<f64>], sent: usize) -> anyhow::Result<()> {
    let (ranks, length) = (given.len(), given[0].len());
    let most = 2 * (ranks - 1) * length.div_ceil(ranks);
    let whole = (ranks - 1) * length;
    Claim::that(sent <= most, format!("at most {most} elements sent"), format!("{sent} elements sent"))
        .on_rank(rank)
        .given(format!("{length} numbers on each of {ranks} ranks"))
        .knows(
            sent >= whole,
            "the sum is right, but whole tensors go around: a rank that sends one chunk in each step sends \
             2 (p - 1) / p of the tensor with p ranks, and not (p - 1) times all of it",
        )
        .otherwise("the sum is right, but more was sent than one chunk in each of 2 (p - 1) steps")
}

/// What every rank holds if the second half is not as it should be.
fn simulated(given: &[Vec<f64>], half: Half) -> Vec<Vec<f64>> {
    let (ranks, length) = (given.len(), given[0].len());
    let chunk = |number: usize| {
        let (each, longer) = (length / ranks, length % ranks);
        let begin = number * each + number.min(longer);
        begin..begin + each + usize::from(number < longer)
    };
    let mut held = given.to_vec();
    let mut step = |step: usize, ahead: usize| {
        let before = held.clone();
        for (rank, own) in held.iter_mut().enumerate() {
            let previous = (rank + ranks - 1) % ranks;
            let comes = chunk((previous + ahead + ranks - step) % ranks);
            comes.for_each(|place| own[place] += before[previous][place]);
        }
    };
    (0..ranks - 1).for_each(|number| step(number, 0));
    if half == Half::Adds {
        (0..ranks - 1).for_each(|number| step(number, 1));
    }
    held
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_what_each_half_leaves() {
        let given = [vec![1.0, 2.0, 3.0], vec![10.0, 20.0, 30.0]];
        // Chunks 0 to 1 and 2; rank 0 has finished chunk 1, rank 1 chunk 0.
        assert_eq!(simulated(&given, Half::Left), [[1.0, 2.0, 33.0], [11.0, 22.0, 30.0]]);
        assert_eq!(simulated(&given, Half::Adds), [[12.0, 24.0, 33.0], [11.0, 22.0, 63.0]]);
    }
}
