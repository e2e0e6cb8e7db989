//! Grades `ring_all_reduce`: tensors of several lengths on 3, 4 and 1 ranks, and how much each rank sends.

use std::ops::Range;

use lockstep_grading::{Claim, Finding, Numbers, Runner, Verdict, causes, counted, explain, given};
use serde::Deserialize;

#[derive(Deserialize)]
struct Reduced {
    numbers: Numbers,
    /// How many elements the rank has sent.
    sent: usize,
}

/// A mistake in the second half of a ring all-reduce, or one with the same result.
#[derive(Clone, Copy, PartialEq)]
enum Half {
    /// It is missing.
    Missing,
    /// It adds the chunks that arrive.
    Adds,
    /// It sends the chunks of the first half again, which are not finished, so each rank's own chunk goes to all ranks. So it does if the first
    /// half replaces chunks instead of adding to them.
    Again,
}

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    let mut traffic = Vec::new();
    for ranks in [3, 4, 1] {
        // A length with a remainder, one without, and one smaller than the number of ranks.
        let lengths = [ranks * random.below(2..6) + ranks.min(2) - 1, ranks * random.below(1..4), (ranks - 1).max(1)];
        let mut of_rank = |rank: usize, length| -> Vec<f64> {
            random.numbers(length).iter().map(|value| f64::from(10 * 3_u32.pow(rank as u32)) + value).collect()
        };
        let cases = lengths.map(|length| (0..ranks).map(|rank| of_rank(rank, length)).collect::<Vec<_>>());
        let outputs = runner.call::<_, Reduced>(ranks, &cases).map_err(|error| {
            let of = |case: usize| cases[case][0].len();
            given(explain(error, |finding| why(finding, of(finding.input?), ranks)), |case| sizes(of(case), ranks))
        })?;
        let all_are = |half: Half| {
            cases.iter().enumerate().all(|(case, given)| {
                simulated(given, half)
                    .iter()
                    .zip(outputs.all(case))
                    .all(|(wrong, reduced)| wrong[..] == reduced.numbers[..])
            })
        };
        let causes = causes(&CAUSES, |half| all_are(*half));
        let only_short = outputs
            .all(0)
            .zip(outputs.all(1))
            .all(|(one, other)| one.numbers[..] == sums(&cases[0])[..] && other.numbers[..] == sums(&cases[1])[..]);
        for (case, given) in cases.iter().enumerate() {
            for (rank, reduced) in outputs.all(case).enumerate() {
                check(rank, given, &reduced.numbers, &causes, only_short)?;
                traffic.push(Traffic { rank, ranks, length: given[0].len(), sent: reduced.sent });
            }
        }
    }
    check_traffic(&traffic)
}

/// The mistakes with their diagnoses.
const CAUSES: [(Half, &str); 3] = [
    (
        Half::Missing,
        "only one chunk is finished, and the others are partial sums, as after the first half. Either the second half, which brings all \
         finished chunks to every rank, is missing, or what it brings is not written into the tensor: `chunks[c] = …` puts another tensor \
         into the list, in place of the view",
    ),
    (Half::Adds, "in the second half, finished chunks were added to partial sums: they must replace them"),
    (
        Half::Again,
        "chunk r is the one that rank r began with, without the other ranks' numbers. Either the first half replaces chunks instead of adding \
         to them, or the second half begins with the same chunk as the first, which is not finished: after the first half, rank r has \
         finished chunk r + 1, which arrived last, and sends that one first",
    ),
];

/// How much a rank has sent.
struct Traffic {
    rank: usize,
    ranks: usize,
    length: usize,
    sent: usize,
}

const UNCHANGED: &str = "most of the tensor has not changed: nothing was added, or the sums are in other tensors. `chunks[c] = …` puts \
                         another tensor into the list, in place of the view: `g_add_` and `copy_` write into the view";

fn why(finding: &Finding, length: usize, ranks: usize) -> Option<String> {
    let sizes = ["must match the size", "match the broadcast shape", "size of tensor"];
    let differ = finding.verdict == Verdict::Crash && sizes.iter().any(|words| finding.diagnosis.contains(words));
    if differ {
        return Some(format!(
            "the chunk that arrived is not as long as the one that it was added or copied to: chunks have unequal lengths, so in each step \
             use the chunk number that the previous rank sends ({})",
            finding.diagnosis
        ));
    }
    (finding.ranks_wait() && length < ranks).then(|| {
        format!(
            "ranks wait for chunks that are never sent. {length} numbers on {ranks} ranks leave a chunk empty: an empty chunk is \
             exchanged, too, or ranks disagree about the step"
        )
    })
}

fn sums(given: &[Vec<f64>]) -> Vec<f64> {
    (0..given[0].len()).map(|place| given.iter().map(|of| of[place]).sum()).collect()
}

/// `only_short`: whether all is right where no chunk is empty.
fn check(rank: usize, given: &[Vec<f64>], observed: &[f64], causes: &[&str], only_short: bool) -> anyhow::Result<()> {
    let (ranks, length) = (given.len(), given[0].len());
    let expected = sums(given);
    let even = length - length % ranks;
    let right = observed.iter().zip(&expected).filter(|(observed, expected)| observed == expected).count();
    let claim =
        Claim::equal(&expected[..], observed).on_rank(rank).given(format!("{}: {given:?}", sizes(length, ranks)));
    claim
        .causes(causes)
        .diagnose_if(observed == &given[rank][..] && even > 0, UNCHANGED)
        .diagnose_if(observed == with_one_chunk(given, rank, &expected), UNCHANGED)
        .diagnose_if(
            ranks == 1 && observed.iter().eq(given[0].iter().map(|own| 2.0 * own).collect::<Vec<_>>().iter()),
            "a single rank has nothing to add, and here it added its own numbers once more: each half takes size - 1 steps, so none here",
        )
        .diagnose_if(
            even == 0 && length > 1 && only_short,
            format!(
                "there are fewer elements than ranks, {length} for {ranks}, and only then the sum is wrong: there must still be a chunk for \
                 each rank, and the last ones are empty. `tensor_split` makes as many chunks as it is asked for, `chunk` and `split` may make \
                 fewer"
            ),
        )
        .diagnose_if(
            even < length && observed.len() == length && (0..length).all(|place| match place {
                place if place < even => observed[place] == expected[place],
                place => observed[place] == given[rank][place],
            }),
            format!(
                "the last {} of {length} elements were left as they were: if the length is not a multiple of the number of ranks, some \
                 chunks are longer",
                length - even
            ),
        )
        .diagnose_if(
            right > 0,
            format!(
                "{right} of {length} elements are right: follow one chunk around the ring and check its number on each rank"
            ),
        )
        .or_fail("this is not the sum over all ranks")
}

fn sizes(length: usize, ranks: usize) -> String {
    format!("{}, {} on each", counted(ranks, "rank"), counted(length, "number"))
}

/// Checks that the ranks did not send too much. Three ranks send as much if whole tensors go around as if each half takes a step too many: so
/// a cause explains what was sent with each number of ranks.
fn check_traffic(all: &[Traffic]) -> anyhow::Result<()> {
    let all_send = |mistake: fn(&Traffic) -> usize| all.iter().all(|of| of.sent == mistake(of));
    let whole = all_send(|of| (of.ranks - 1) * of.length);
    let whole_twice = all_send(|of| 2 * (of.ranks - 1) * of.length);
    let all_around = all_send(|of| 2 * of.length);
    for &Traffic { rank, ranks, length, sent } in all {
        let most = 2 * (ranks - 1) * length.div_ceil(ranks);
        Claim::that(
            sent <= most,
            format!("at most {} sent", counted(most, "element")),
            format!("{} sent", counted(sent, "element")),
        )
        .on_rank(rank)
        .given(sizes(length, ranks))
        .cause_if(
            whole || whole_twice,
            "the sum is right, but whole tensors go around, p - 1 of them from each of p ranks: a rank that sends one chunk in each step \
             sends only 2 (p - 1) / p of a tensor",
        )
        .cause_if(
            all_around,
            "the sum is right, but each half sends each chunk once, in p steps on p ranks: the last step of a half brings what is there \
             already, and p - 1 are enough",
        )
        .or_fail("the sum is right, but the ranks sent more than one chunk in each of 2 (p - 1) steps")?;
    }
    Ok(())
}

/// The places of a chunk.
fn chunk(number: usize, length: usize, ranks: usize) -> Range<usize> {
    let (each, longer) = (length / ranks, length % ranks);
    let begin = number * each + number.min(longer);
    begin..begin + each + usize::from(number < longer)
}

/// A rank's own tensor with the sum in its own chunk, the only one that it never adds to.
fn with_one_chunk(given: &[Vec<f64>], rank: usize, sum: &[f64]) -> Vec<f64> {
    let mut held = given[rank].clone();
    chunk(rank, sum.len(), given.len()).for_each(|place| held[place] = sum[place]);
    held
}

/// What every rank holds after this mistake.
fn simulated(given: &[Vec<f64>], half: Half) -> Vec<Vec<f64>> {
    let (ranks, length) = (given.len(), given[0].len());
    let mut held = given.to_vec();
    let mut step = |step: usize, ahead: usize, adds: bool| {
        let before = held.clone();
        for (rank, own) in held.iter_mut().enumerate() {
            let previous = (rank + ranks - 1) % ranks;
            let comes = chunk((previous + ahead + ranks - step) % ranks, length, ranks);
            comes.for_each(|place| own[place] = before[previous][place] + if adds { own[place] } else { 0.0 });
        }
    };
    (0..ranks - 1).for_each(|number| step(number, 0, true));
    match half {
        Half::Missing => {}
        Half::Adds => (0..ranks - 1).for_each(|number| step(number, 1, true)),
        Half::Again => (0..ranks - 1).for_each(|number| step(number, 0, false)),
    }
    held
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simulates_both_mistakes() {
        let given = [vec![1.0, 2.0, 3.0], vec![10.0, 20.0, 30.0]];
        // Chunks 0 to 1 and 2; rank 0 has finished chunk 1, rank 1 chunk 0.
        assert_eq!(simulated(&given, Half::Missing), [[1.0, 2.0, 33.0], [11.0, 22.0, 30.0]]);
        assert_eq!(simulated(&given, Half::Adds), [[12.0, 24.0, 33.0], [11.0, 22.0, 63.0]]);
    }
}
