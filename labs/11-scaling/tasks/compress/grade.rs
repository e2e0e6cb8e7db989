//! Grades `compress`: the error, the kind, and the bytes of the mean, for gradients of usual size, large ones, small ones and both together;
//! on three ranks and on two.

use lockstep_grading::{Claim, Inputs, Numbers, Runner, Verdict, causes, counted};
use serde::Deserialize;

const COUNT: usize = 400;
/// The largest number of half precision.
const LARGEST: f64 = 65504.0;
const LARGE: f64 = 60_000.0;
/// Above all small numbers.
const SMALL: f64 = 1e-3;
/// The unit roundoff of half precision: 11 bits of mantissa.
const ROUNDING: f64 = 1.0 / 2048.0;
/// What 8 bits of mantissa cost, as a part of a number.
const COARSE: f64 = 32.0 * ROUNDING;

#[derive(Deserialize)]
struct Counted {
    /// The mean, its kind, and whether the gradient is still as it was.
    result: (Numbers, String, bool),
    calls: u64,
    bytes: u64,
}

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    for ranks in [3, 2] {
        // Numbers that need 11 bits; of one sign, so that the sum of large ones is beyond half precision.
        let mut draw = |scales: &dyn Fn(usize, usize) -> f64| -> Vec<Vec<f64>> {
            let number = |random: &mut Inputs, scale: f64| scale * random.below(1024..2048) as f64 / 2048.0;
            (0..ranks).map(|rank| (0..COUNT).map(|at| number(&mut random, scales(rank, at))).collect()).collect()
        };
        // The largest number is another one on each rank. Small numbers keep their bits if they are only divided by the number of ranks.
        let cases = [
            draw(&|rank, _| [4.0, 2.0, 1.0][rank]),
            draw(&|_, _| LARGE),
            draw(&|_, _| SMALL),
            draw(&|_, at| LARGE / f64::from(1 << (at % 26))),
        ];
        let outputs = runner.call::<_, Counted>(ranks, &cases)?;
        let found = |number: usize| outputs.all(number).collect::<Vec<&Counted>>();
        // Returns true if all ranks have this in all cases; what half precision cannot hold may be infinite.
        let all_are = |wrong: Exchange| {
            let is = |(right, found): (&f64, &f64)| {
                (right - found).abs() <= COARSE * right.abs() || (*right > LARGEST && !found.is_finite())
            };
            cases.iter().enumerate().all(|(number, gradients)| {
                found(number).into_iter().enumerate().all(|(rank, found)| {
                    let (wrong, values) = (wrong(gradients, rank), &found.result.0);
                    values.len() == COUNT && wrong.iter().zip(values.iter()).all(is)
                })
            })
        };
        let causes = causes(&MISTAKES, |wrong| all_are(*wrong));
        for (number, gradients) in cases.iter().enumerate() {
            // Not true of numbers that are not finite.
            let differ = |(one, other): (&f64, &f64)| (one - other).abs() > ROUNDING * one.abs();
            let found = found(number);
            let apart = found.iter().any(|of| of.result.0.iter().zip(found[0].result.0.iter()).any(differ));
            for (rank, found) in found.into_iter().enumerate() {
                check(gradients, rank, found, apart, &causes)?;
            }
        }
    }
    Ok(())
}

/// What a rank has of all ranks' gradients in the end.
type Exchange = fn(&[Vec<f64>], usize) -> Vec<f64>;

/// What mistakes give.
const MISTAKES: [(Exchange, &str); 3] = [
    (|gradients, _| sums(gradients), "summed, not averaged: divide by the number of ranks"),
    (|gradients, rank| gradients[rank].clone(), "this is the rank's own gradient: nothing was exchanged"),
    (
        |gradients, rank| gradients[rank].iter().map(|number| number / gradients.len() as f64).collect(),
        "this is the rank's own gradient, divided by the number of ranks: nothing was exchanged",
    ),
];

fn sums(gradients: &[Vec<f64>]) -> Vec<f64> {
    (0..COUNT).map(|at| gradients.iter().map(|of| of[at]).sum()).collect()
}

/// Returns true if no number differs by more than this part of its value.
fn near(right: &[f64], found: &[f64], part: f64) -> bool {
    right.len() == found.len()
        && right.iter().zip(found).all(|(right, found)| (right - found).abs() <= part * right.abs())
}

fn check(gradients: &[Vec<f64>], rank: usize, found: &Counted, apart: bool, causes: &[&str]) -> anyhow::Result<()> {
    let (values, kind, kept) = &found.result;
    let ranks = gradients.len();
    let sums = sums(gradients);
    let means: Vec<f64> = sums.iter().map(|sum| sum / ranks as f64).collect();
    let largest = means.iter().copied().fold(0.0, f64::max);
    let least = means.iter().copied().fold(f64::INFINITY, f64::min);
    // Of each rank's part when it is converted and divided, and of each sum; as a part of the number.
    let tolerance = (ranks + 1) as f64 * ROUNDING;
    let given = format!("{COUNT} numbers with means from {least:.4} to {largest:.4} on each of {ranks} ranks");
    let wrong = means.iter().zip(values.iter()).filter(|(mean, value)| (*mean - *value).abs() > tolerance * mean.abs());
    let limit = wrong.clone().map(|(mean, _)| *mean).fold(0.0, f64::max);
    let unlimited = values.iter().filter(|value| !value.is_finite()).count();
    let largest_sum = sums.iter().copied().fold(0.0, f64::max);
    // Of the first number; if it is that of all numbers, they are the mean but for a factor.
    let factor = values.first().map_or(f64::NAN, |value| value / means[0]);
    let scaled: Vec<f64> = means.iter().map(|mean| factor * mean).collect();
    Claim::that(
        near(&means, values, tolerance),
        format!("the mean, within {tolerance:.2e} of each number"),
        described(values, &means),
    )
    .on_rank(rank)
    .given(&given)
    .verdict(if apart { Verdict::RanksDisagree } else { Verdict::WrongValue })
    .causes(causes)
    .diagnose_if(
        values.len() != COUNT,
        format!("the result has {} numbers, and the gradient has {COUNT}: the mean has the gradient's shape", values.len()),
    )
    .diagnose_if(
        unlimited > 0 && largest_sum > LARGEST,
        format!(
            "half precision ends at {LARGEST}: the ranks' gradients add up to {largest_sum:.0}, and one that is scaled up may be larger. \
             Divide before you add up, and do not multiply before",
        ),
    )
    .diagnose_if(
        unlimited > 0,
        format!(
            "infinite or not a number, although these gradients and their sum are far below {LARGEST}, the largest number of half precision: \
             the cause is what they are divided by or multiplied with",
        ),
    )
    .diagnose_if(
        apart,
        "the ranks have different means, and each needs the same: either not all ranks get the same sum, or what is done with it depends on \
         the rank, as a scale by the rank's own largest number does",
    )
    .diagnose_if(
        limit < 1.0,
        format!(
            "only numbers up to {limit:.4} have lost bits. Half precision has 11 bits down to 6e-5, and fewer below: a scale that makes \
             small numbers smaller than that costs bits, and a division by the number of ranks is enough to keep large ones from overflow"
        ),
    )
    .diagnose_if(
        near(&means, values, COARSE),
        "right to 8 bits of mantissa, as many as bfloat16 has: half precision keeps 11 of gradients of this size",
    )
    .diagnose_if(near(&scaled, values, COARSE), format!("each number is {factor:.3} times the mean over all ranks"))
    .or_fail(format!("{} of {COUNT} numbers are not the mean over all ranks", wrong.count()))?;
    Claim::that(*kept, "the gradient as it was", "another one")
        .on_rank(rank)
        .given(&given)
        .or_fail("the mean is right, but `gradient` itself was changed in place: compute from a copy")?;
    Claim::that(
        (found.calls, found.bytes) == (1, 2 * COUNT as u64),
        format!("1 operation with {} bytes", 2 * COUNT),
        format!("{} with {} bytes", counted(found.calls, "operation"), found.bytes),
    )
    .on_rank(rank)
    .given(&given)
    .diagnose_if(
        found.bytes == 4 * COUNT as u64,
        "the mean is right, but 4 bytes were sent for each number: what is passed to the group has to be of kind Half",
    )
    .or_fail("the mean is right, but more than 2 bytes for each number were sent, or in more than one operation")?;
    Claim::equal("Float", kind.as_str())
        .on_rank(rank)
        .given(given)
        .or_fail("the mean is in half precision: the optimizer needs a gradient of the parameter's own kind")
}

/// The error of the values, if they have one.
fn described(values: &[f64], means: &[f64]) -> String {
    let unlimited = values.iter().filter(|value| !value.is_finite()).count();
    let size = if values.len() != means.len() {
        format!("{} numbers", values.len())
    } else if unlimited > 0 {
        format!("{unlimited} of {} numbers are infinite or NaN", values.len())
    } else {
        let error = means.iter().zip(values).map(|(mean, value)| (mean - value).abs() / mean.abs()).fold(0.0, f64::max);
        format!("an error of {error:.2e} of a number")
    };
    format!("{size}; the first numbers are {:?}", &values[..values.len().min(3)])
}
