//! Grades `norm`: gradients that are equal on all ranks, divided, or missing on some; with norms above and below the limit.

use lockstep_grading::{Claim, Finding, Inputs, Numbers, Runner, causes, close, explain, joined};
use serde::{Deserialize, Serialize};

const TOLERANCE: f64 = 1e-5;

/// A gradient's numbers, and whether it is divided.
type Gradient = (Vec<f64>, bool);

/// The limit, and the numbers of gradients, as [`draw`] takes them.
type Kind<'a> = (Option<f64>, &'a [usize], &'a [&'a [usize]]);

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
    let kinds: [Kind<'_>; 6] = [
        (Some(0.15), &[3, 2], &[&[2, 4], &[3, 3]]),
        (Some(0.8), &[4], &[&[5], &[1], &[2]]),
        (Some(0.3), &[2], &[&[3, 1], &[], &[4], &[2, 2, 1]]),
        (Some(1.1), &[3], &[&[2], &[2]]),
        (Some(0.5), &[], &[&[2], &[], &[3]]),
        (None, &[2], &[&[1], &[2]]),
    ];
    let mut all: Vec<(Case, Vec<Done>)> = Vec::new();
    let mut end = Ok(());
    for (limit, whole, parts) in kinds {
        let case = draw(&mut random, limit, whole, parts);
        match runner.call::<_, Done>(parts.len(), &[&case]) {
            Ok(outputs) => all.push((case, outputs.all(0).cloned().collect())),
            Err(error) => {
                end = Err(explain(error, hangs));
                break;
            }
        }
    }
    // What mistakes give, on all ranks of all cases.
    let everywhere = |mistake: &Mistake| {
        all.iter().all(|(case, found)| {
            let is = |(rank, done): (usize, &Done)| {
                close(&[mistake(case, rank)], &[done.norm.unwrap_or(f64::NAN)], TOLERANCE)
            };
            found.iter().enumerate().all(is)
        })
    };
    let causes = causes(&MISTAKES, everywhere);
    all.iter().try_for_each(|(case, found)| check(case, found, &causes))?;
    end
}

fn hangs(finding: &Finding) -> Option<String> {
    finding.ranks_wait().then(|| {
        "the ranks call all_reduce a different number of times: they may have different numbers of gradients, so add up the squares on each \
         rank first"
            .into()
    })
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
    /// The sum of the squares that all ranks have.
    fn whole(&self) -> f64 {
        squares(&self.ranks[0], false)
    }

    /// The sum of the squares of a rank's parts.
    fn part(&self, rank: usize) -> f64 {
        squares(&self.ranks[rank], true)
    }

    /// The sum over the ranks of what this makes of their parts' squares.
    fn sum(&self, of: fn(f64) -> f64) -> f64 {
        (0..self.ranks.len()).map(|rank| of(self.part(rank))).sum()
    }

    fn norm(&self) -> f64 {
        (self.whole() + self.sum(|part| part)).sqrt()
    }

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

/// The norm that a mistake gives on a rank.
type Mistake = fn(&Case, usize) -> f64;

const MISTAKES: [(Mistake, &str); 9] = [
    (
        |case, _| (case.ranks.len() as f64 * case.whole() + case.sum(|part| part)).sqrt(),
        "what all ranks have counts once for each of them: only the parts are added over the ranks",
    ),
    (
        |case, _| (case.whole() + (0..case.ranks.len()).map(|rank| case.part(rank)).fold(0.0, f64::max)).sqrt(),
        "this is the largest of the ranks' norms: the parts of all belong to it",
    ),
    (
        |case, rank| (case.whole() + case.part(rank)).sqrt(),
        "this is the norm of what this rank has: the parts on the other ranks belong to it, too",
    ),
    (
        |case, _| case.whole().sqrt() + case.sum(f64::sqrt),
        "norms are added: add squares, and take one square root at the end",
    ),
    (
        |case, _| (case.whole() + case.sum(f64::sqrt).powi(2)).sqrt(),
        "the norms of the ranks' parts are added: add their squares, and take one square root at the end",
    ),
    (
        |case, _| (case.whole() + case.sum(|part| part) / case.ranks.len() as f64).sqrt(),
        "this is the mean of the ranks' squares: their sum belongs to the norm",
    ),
    (|case, _| case.norm().powi(2), "this is the sum of the squares: the norm is its root"),
    (|case, _| case.sum(|part| part).sqrt(), "what all ranks have is missing: it counts once"),
    (|case, _| case.norm().min(case.max_norm), "this is the norm after clipping: the one from before is asked for"),
];

fn check(case: &Case, found: &[Done], causes: &[&str]) -> anyhow::Result<()> {
    let (given, norm) = (case.described(), case.norm());
    for (rank, done) in found.iter().enumerate() {
        let observed = done.norm.unwrap_or(f64::NAN);
        Claim::close(&[norm], &[observed], TOLERANCE)
            .on_rank(rank)
            .given(&given)
            .causes(causes)
            .diagnose_if(
                case.ranks[rank].is_empty()
                    && found.iter().zip(&case.ranks).all(|(done, own)| {
                        own.is_empty() || close(&[norm], &[done.norm.unwrap_or(f64::NAN)], TOLERANCE)
                    }),
                "only a rank without gradients has another norm: it is that of all ranks' gradients there, too",
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

fn check_values(case: &Case, given: &str, norm: f64, found: &[Done]) -> anyhow::Result<()> {
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
