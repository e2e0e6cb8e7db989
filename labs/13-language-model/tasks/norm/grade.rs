//! Grades `norm`: gradients that are equal on all ranks, divided, or missing on some; with norms above and below the limit.

use lockstep_grading::{Claim, Inputs, Numbers, Runner, Verdict, close, explain, joined};
use serde::{Deserialize, Serialize};

const TOLERANCE: f64 = 1e-5;

/// A gradient's numbers, and whether it is divided.
type Gradient = (Vec<f64>, bool);

#[derive(Clone, Debug, Serialize)]
struct Case {
    max_norm: f64,
    /// Of each rank.
    ranks: Vec<Vec<Gradient>>,
}

#[derive(Clone, Debug, Deserialize)]
struct Done {
    /// `None` is NaN.
    norm: Option<f64>,
    values: Vec<Numbers>,
    calls: u64,
}

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    // The limit in norms, how many numbers all ranks have, and how many each has of its own in each divided gradient.
    for (limit, whole, parts) in [
        (Some(0.15), &[3, 2][..], &[&[2, 4][..], &[3, 3]][..]),
        (Some(0.8), &[4], &[&[5], &[1], &[2]]),
        (Some(0.3), &[2], &[&[3, 1], &[], &[4], &[2, 2, 1]]),
        (Some(1.1), &[3], &[&[2], &[2]]),
        (Some(0.5), &[], &[&[2], &[], &[3]]),
        (None, &[2], &[&[1], &[2]]),
    ] {
        let case = draw(&mut random, limit, whole, parts);
        let outputs = runner.call::<_, Done>(parts.len(), &[&case]).map_err(|error| {
            explain(error, |finding| {
                (finding.verdict == Verdict::Hang).then(|| {
                    "the ranks call all_reduce a different number of times: they may have different numbers of gradients, so add up the \
                     squares on each rank first"
                        .into()
                })
            })
        })?;
        let found: Vec<&Done> = outputs.all(0).collect();
        check(&case, &found)?;
    }
    Ok(())
}

/// Without a limit, all numbers are 0.
fn draw(random: &mut Inputs, limit: Option<f64>, whole: &[usize], parts: &[&[usize]]) -> Case {
    let mut number = || if limit.is_some() { random.below(50..300) as f64 / 100.0 } else { 0.0 };
    let mut numbers = |count: usize| (0..count).map(|_| number()).collect::<Vec<f64>>();
    let all: Vec<Gradient> = whole.iter().map(|count| (numbers(*count), false)).collect();
    let of_rank = |counts: &&[usize]| {
        let own = counts.iter().map(|count| (numbers(*count), true)).collect::<Vec<Gradient>>();
        own.into_iter().chain(all.clone()).collect()
    };
    let ranks: Vec<Vec<Gradient>> = parts.iter().map(of_rank).collect();
    let all = squares(&ranks[0], false) + ranks.iter().map(|rank| squares(rank, true)).sum::<f64>();
    let max_norm = limit.map_or(1.0, |limit| (100.0 * limit * all.sqrt()).round() / 100.0);
    Case { max_norm, ranks }
}

/// The sum of the squares of a rank's gradients that are divided, or of the others.
fn squares(rank: &[Gradient], divided: bool) -> f64 {
    let some = rank.iter().filter(|(_, of)| *of == divided).flat_map(|(numbers, _)| numbers);
    some.map(|number| number * number).sum()
}

impl Case {
    fn described(&self) -> String {
        let gradient = |(numbers, divided): &Gradient| {
            let kind = if *divided { "a part" } else { "whole" };
            format!("{kind} [{}]", joined(numbers, ", "))
        };
        let rank = |(number, gradients): (usize, &Vec<Gradient>)| {
            format!("rank {number}: {}", joined(&gradients.iter().map(gradient).collect::<Vec<_>>(), ", "))
        };
        let ranks: Vec<String> = self.ranks.iter().enumerate().map(rank).collect();
        format!("max_norm {}\n{}", self.max_norm, ranks.join("\n"))
    }
}

fn check(case: &Case, found: &[&Done]) -> anyhow::Result<()> {
    let given = case.described();
    let whole = squares(&case.ranks[0], false);
    let parts: Vec<f64> = case.ranks.iter().map(|rank| squares(rank, true)).collect();
    let (sum, ranks) = (parts.iter().sum::<f64>(), parts.len() as f64);
    let (norm, norms) = ((whole + sum).sqrt(), parts.iter().map(|part| part.sqrt()).sum::<f64>());
    let largest = parts.iter().fold(0.0_f64, |most, part| most.max(*part));
    for (rank, done) in found.iter().enumerate() {
        let observed = done.norm.unwrap_or(f64::NAN);
        let is = |other: f64| close(&[other], &[observed], TOLERANCE);
        Claim::close(&[norm], &[observed], TOLERANCE)
            .on_rank(rank)
            .given(&given)
            .diagnose_if(
                is((ranks * whole + sum).sqrt()),
                "what all ranks have counts once for each of them: only the parts are added over the ranks",
            )
            .diagnose_if(
                is((whole + largest).sqrt()) && found.iter().all(|other| other.norm == done.norm),
                "this is the largest of the ranks' norms: the parts of all belong to it",
            )
            .diagnose_if(
                is((whole + parts[rank]).sqrt()),
                "this is the norm of what this rank has: the parts on the other ranks belong to it, too",
            )
            .diagnose_if(is(whole.sqrt() + norms), "norms are added: add squares, and take one square root at the end")
            .diagnose_if(
                is((whole + norms * norms).sqrt()),
                "the norms of the ranks' parts are added: add their squares, and take one square root at the end",
            )
            .diagnose_if(
                is((whole + sum / ranks).sqrt()),
                "this is the mean of the ranks' squares: their sum belongs to the norm",
            )
            .diagnose_if(is(norm * norm), "this is the sum of the squares: the norm is its root")
            .diagnose_if(is(sum.sqrt()), "what all ranks have is missing: it counts once")
            .diagnose_if(
                is(norm.min(case.max_norm)),
                "this is the norm after clipping: the one from before is asked for",
            )
            .or_fail("the norm is the root of the sum of all squares, of which each counts once")?;
    }
    check_values(case, &given, norm, found)?;
    for (rank, done) in found.iter().enumerate() {
        Claim::that(done.calls == 1, "one operation of the group", done.calls.to_string())
            .on_rank(rank)
            .given(&given)
            .or_fail("add up the squares on each rank first: then one number is exchanged")?;
    }
    Ok(())
}

fn check_values(case: &Case, given: &str, norm: f64, found: &[&Done]) -> anyhow::Result<()> {
    let factor = if norm > case.max_norm { case.max_norm / norm } else { 1.0 };
    for (rank, done) in found.iter().enumerate() {
        let of = |by: &dyn Fn(f64) -> f64| -> Vec<f64> {
            case.ranks[rank].iter().flat_map(|(numbers, _)| numbers).map(|number| by(*number)).collect()
        };
        let expected = of(&|number| factor * number);
        let observed: Vec<f64> = done.values.iter().flat_map(|values| values.0.clone()).collect();
        let is = |by: &dyn Fn(f64) -> f64| close(&of(by), &observed, TOLERANCE);
        let only = |divided: bool| -> Vec<f64> {
            let by = |(numbers, of): &Gradient| {
                let factor = if *of == divided { factor } else { 1.0 };
                numbers.iter().map(|number| factor * number).collect::<Vec<f64>>()
            };
            case.ranks[rank].iter().flat_map(by).collect()
        };
        let own = (squares(&case.ranks[rank], true) + squares(&case.ranks[rank], false)).sqrt();
        Claim::close(&expected, &observed, TOLERANCE)
            .on_rank(rank)
            .given(given)
            .diagnose_if(
                observed.iter().any(|number| number.is_nan()),
                "NaN: if all gradients are 0, max_norm / norm is not a number. Multiply only if the norm is above max_norm",
            )
            .diagnose_if(
                factor < 1.0 && is(&|number| number),
                "the norm is above the limit, and the gradients have not changed: multiply them by max_norm / norm",
            )
            .diagnose_if(
                factor == 1.0 && is(&|number| number * case.max_norm / norm),
                "the norm is below the limit, and the gradients have changed: leave them as they are",
            )
            .diagnose_if(
                is(&|number| number * (case.max_norm / own).min(1.0)),
                "each rank clips by its own norm, so the ranks' gradients no longer fit together: use the norm of all",
            )
            .diagnose_if(
                [false, true].into_iter().any(|divided| close(&only(divided), &observed, TOLERANCE)),
                "only the divided gradients are clipped, or only the others: all are multiplied by the same factor",
            )
            .diagnose_if(
                is(&|number| number.clamp(-case.max_norm, case.max_norm)),
                "each number is clipped by itself, which changes the direction of the step: multiply all by one factor",
            )
            .or_fail("multiply each number by max_norm / norm if the norm is above max_norm")?;
    }
    Ok(())
}
