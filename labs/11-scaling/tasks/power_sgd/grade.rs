//! Grades `power_sgd`: the results of some steps, what they leave out, and the bytes that they send.

use lockstep_grading::{Claim, Finding, Inputs, Numbers, Runner, Verdict, causes, close, explain};
use serde::Deserialize;

const RANKS: usize = 3;
const STEPS: usize = 4;
/// The gradient's rows and columns, and the columns of the two matrices.
const SIZE: [usize; 3] = [8, 6, 2];
const TOLERANCE: f64 = 1e-7;

/// Rows of numbers.
type Matrix = Vec<Vec<f64>>;

#[derive(Deserialize)]
struct Counted {
    /// The numbers of each step's result, and the part that it leaves out.
    result: Vec<(Numbers, f64)>,
    calls: u64,
    bytes: u64,
}

/// Norms of one step on one rank: of what its result leaves out, of what was due, and of the gradient alone.
struct LeftOut {
    lost: f64,
    due: f64,
    gradient: f64,
}

/// What an answer may do differently.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Right,
    Forgets,
    LastLoss,
    NotOrthonormal,
    Cold,
    Sums,
    LeftOfGradient,
    LostAddsUp,
    LostDivided,
}

const WAYS: [(Way, &str); 8] = [
    (
        Way::Forgets,
        "this is the result without error feedback: what earlier steps have left out is gone, and the same directions are left out again",
    ),
    (
        Way::LastLoss,
        "the memory holds the difference between this step's gradient and the result: subtract the result from all that was due, or what \
         earlier steps left out is lost",
    ),
    (Way::NotOrthonormal, "the columns of left are not orthonormal, so left · rightᵀ has the wrong scale"),
    (
        Way::Cold,
        "each step begins with the first right matrix: one step of a power iteration approaches the largest directions, and the next goes \
         on from there",
    ),
    (Way::Sums, "summed, not averaged: divide by the number of ranks"),
    (
        Way::LeftOfGradient,
        "left comes from the gradient alone: both matrices come from what is due, or the directions that were left out are not found",
    ),
    (
        Way::LostAddsUp,
        "what was left out before is added twice: it was due in this step, so what this step leaves out already contains it",
    ),
    (
        Way::LostDivided,
        "the memory was divided by the number of ranks: it is this rank's own, and the next step's mean divides it",
    ),
];

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    let [n, m, r] = SIZE;
    let right = draw(&mut random, m, r);
    let steps: Vec<Vec<Matrix>> = (0..STEPS).map(|_| (0..RANKS).map(|_| draw(&mut random, n, m)).collect()).collect();
    let outputs =
        runner.call::<_, Counted>(RANKS, &[(&right, &steps)]).map_err(|error| explain(error, not_contiguous))?;
    let given =
        format!("{STEPS} steps with a gradient of {n} × {m} on each of {RANKS} ranks, and matrices of {r} columns");
    let found: Vec<&Counted> = outputs.all(0).collect();
    for (rank, counted) in found.iter().enumerate() {
        check_size(rank, counted, &given)?;
    }
    let of = |way| follow(way, right.clone(), &steps);
    let (expected, left_out) = of(Way::Right);
    let whole: Vec<f64> = steps.iter().flat_map(|step| mean(step.iter().cloned()).concat()).collect();
    let others: Vec<(Vec<f64>, &'static str)> = WAYS.iter().map(|(way, says)| (of(*way).0, *says)).collect();
    // In the first step that a mistake changes, and in the next. Of results that grow from step to step, as some wrong ones do, rounding leaves
    // no common digits in the end.
    let begins = |other: &[f64], result: &[f64]| {
        let differ = (0..STEPS).find(|step| !close(of_step(&expected, *step), of_step(other, *step), TOLERANCE));
        (0..STEPS.min(differ.unwrap_or(0) + 2)).all(|step| {
            let other = of_step(other, step);
            close(other, of_step(result, step), TOLERANCE * other.iter().fold(1.0, |most, one| one.abs().max(most)))
        })
    };
    let results: Vec<Vec<f64>> = found.iter().map(|counted| flat(counted)).collect();
    let causes = causes(&others, |other| results.iter().all(|result| begins(other, result)));
    let apart = results.iter().any(|other| !close(&results[0], other, TOLERANCE));
    for (rank, result) in results.iter().enumerate() {
        let (wanted, observed) = shown(&expected, result);
        let claim = Claim::that(close(&expected, result, TOLERANCE), wanted, observed).on_rank(rank).given(&given);
        claim
            .causes(&causes)
            .diagnose_if(
                close(&whole, result, TOLERANCE),
                "this is the mean of the whole gradients, so nothing is left out of it: send left and right in its place",
            )
            .verdict(if apart { Verdict::RanksDisagree } else { Verdict::WrongValue })
            .diagnose_if(
                apart,
                "each rank has a different result, so their weights would diverge: both matrices must be means over all ranks",
            )
            .or_fail("this is not left · rightᵀ of the steps' means")?;
        check_part(rank, &left_out, &found[rank].result, &given)?;
    }
    found.iter().enumerate().try_for_each(|(rank, counted)| check_sent(rank, counted, &given))
}

/// A matrix that is sent after it was made orthonormal is stored by columns.
fn not_contiguous(finding: &Finding) -> Option<String> {
    let refused = finding.verdict == Verdict::Crash && finding.diagnosis.contains("is not contiguous");
    refused.then(|| {
        format!(
            "a matrix is sent as `tr` or `linalg_qr` left it, by columns. If it is left: first the mean over all ranks, then orthonormal \
             columns, or each rank makes others orthonormal, and their mean is not ({})",
            finding.diagnosis
        )
    })
}

fn draw(random: &mut Inputs, rows: usize, columns: usize) -> Matrix {
    let mut number = || random.below(0..2001) as f64 / 1000.0 - 1.0;
    (0..rows).map(|_| (0..columns).map(|_| number()).collect()).collect()
}

fn flat(counted: &Counted) -> Vec<f64> {
    counted.result.iter().flat_map(|(numbers, _)| numbers.iter().copied()).collect()
}

/// The numbers of one of the steps.
fn of_step(all: &[f64], step: usize) -> &[f64] {
    let length = SIZE[0] * SIZE[1];
    &all[step * length..][..length]
}

/// The first numbers of the first step in which the results differ.
fn shown(expected: &[f64], found: &[f64]) -> (String, String) {
    let same = |step: &usize| close(of_step(expected, *step), of_step(found, *step), TOLERANCE);
    let step = (0..STEPS).find(|step| !same(step)).unwrap_or(0);
    let first = |of: &[f64]| {
        let [a, b, c] = [0, 1, 2].map(|at| of_step(of, step)[at]);
        format!("step {step}: {a:.4}, {b:.4}, {c:.4}, …")
    };
    (first(expected), first(found))
}

fn check_size(rank: usize, counted: &Counted, given: &str) -> anyhow::Result<()> {
    let lengths: Vec<usize> = counted.result.iter().map(|(numbers, _)| numbers.len()).collect();
    Claim::equal(&vec![SIZE[0] * SIZE[1]; STEPS], &lengths)
        .on_rank(rank)
        .given(given)
        .or_fail("the result has the gradient's shape: left · rightᵀ")
}

fn check_part(rank: usize, left_out: &[Vec<LeftOut>], found: &[(Numbers, f64)], given: &str) -> anyhow::Result<()> {
    let found: Vec<f64> = found.iter().map(|(_, part)| *part).collect();
    let parts = |of: fn(&LeftOut) -> f64| -> Vec<f64> {
        left_out.iter().map(|step| step[rank].lost / of(&step[rank])).collect()
    };
    Claim::close(&parts(|step| step.due), &found, TOLERANCE)
        .on_rank(rank)
        .given(given)
        .diagnose_if(
            close(&parts(|step| step.gradient), &found, TOLERANCE),
            "what is left out is compared with this step's gradient: more than that was due, since earlier steps have left something out",
        )
        .diagnose_if(found.iter().all(|part| *part == 0.0), "two thin matrices do not hold the whole gradient: something is left out")
        .or_fail("the result is right, but this is not the part that it leaves out: ‖due − result‖ / ‖due‖")
}

fn check_sent(rank: usize, counted: &Counted, given: &str) -> anyhow::Result<()> {
    let [n, m, r] = SIZE;
    let steps = STEPS as u64;
    let due = (2 * steps, steps * 8 * ((n + m) * r) as u64);
    Claim::that(
        (counted.calls, counted.bytes) == due,
        format!("{} operations with {} bytes", due.0, due.1),
        format!("{} with {} bytes", lockstep_grading::counted(counted.calls, "operation"), counted.bytes),
    )
    .on_rank(rank)
    .given(given)
    .diagnose_if(
        counted.bytes >= steps * 8 * (n * m) as u64,
        "the result is right, but as many bytes were sent as the gradient has: PowerSGD sends left and right, and nothing else",
    )
    .or_fail("the result is right, but other bytes were sent than those of left and right")
}

/// The results of all steps, and what each leaves out on each rank.
fn follow(way: Way, mut right: Matrix, steps: &[Vec<Matrix>]) -> (Vec<f64>, Vec<Vec<LeftOut>>) {
    let [n, m, _] = SIZE;
    let first = right.clone();
    let mut lost = vec![vec![vec![0.0; m]; n]; RANKS];
    let (mut results, mut left_out) = (Vec::new(), Vec::new());
    for gradients in steps {
        let due: Vec<Matrix> =
            gradients.iter().zip(&lost).map(|(gradient, lost)| combine(gradient, lost, 1.0)).collect();
        let of = if way == Way::LeftOfGradient { gradients } else { &due };
        let left = mean(of.iter().map(|of| product(of, &right)));
        let left = if way == Way::NotOrthonormal { left } else { orthonormal(left) };
        right = mean(due.iter().map(|due| product(&transposed(due), &left)));
        if way == Way::Sums {
            right.iter_mut().flatten().for_each(|number| *number *= RANKS as f64);
        }
        let result = product(&left, &transposed(&right));
        let step = |(gradient, due): (&Matrix, &Matrix)| LeftOut {
            lost: norm(&combine(due, &result, -1.0)),
            due: norm(due),
            gradient: norm(gradient),
        };
        left_out.push(gradients.iter().zip(&due).map(step).collect());
        lost = match way {
            Way::Forgets => lost,
            Way::LastLoss => gradients.iter().map(|gradient| combine(gradient, &result, -1.0)).collect(),
            Way::LostAddsUp => {
                let lacks = due.iter().map(|due| combine(due, &result, -1.0));
                lost.iter().zip(lacks).map(|(lost, lacks)| combine(lost, &lacks, 1.0)).collect()
            }
            Way::LostDivided => {
                let part =
                    |due: &Matrix| combine(&vec![vec![0.0; m]; n], &combine(due, &result, -1.0), 1.0 / RANKS as f64);
                due.iter().map(part).collect()
            }
            _ => due.iter().map(|due| combine(due, &result, -1.0)).collect(),
        };
        if way == Way::Cold {
            right.clone_from(&first);
        }
        results.extend(result.concat());
    }
    (results, left_out)
}

/// `one` + `factor`·`other`.
fn combine(one: &Matrix, other: &Matrix, factor: f64) -> Matrix {
    let row = |(one, other): (&Vec<f64>, &Vec<f64>)| one.iter().zip(other).map(|(a, b)| a + factor * b).collect();
    one.iter().zip(other).map(row).collect()
}

fn mean(matrices: impl Iterator<Item = Matrix>) -> Matrix {
    let sum = matrices.reduce(|sum, matrix| combine(&sum, &matrix, 1.0)).unwrap_or_default();
    sum.into_iter().map(|row| row.into_iter().map(|number| number / RANKS as f64).collect()).collect()
}

fn transposed(matrix: &Matrix) -> Matrix {
    (0..matrix[0].len()).map(|column| matrix.iter().map(|row| row[column]).collect()).collect()
}

fn product(one: &Matrix, other: &Matrix) -> Matrix {
    let columns = transposed(other);
    one.iter().map(|row| columns.iter().map(|column| dot(row, column)).collect()).collect()
}

fn dot(one: &[f64], other: &[f64]) -> f64 {
    one.iter().zip(other).map(|(a, b)| a * b).sum()
}

fn norm(matrix: &Matrix) -> f64 {
    dot(&matrix.concat(), &matrix.concat()).sqrt()
}

/// Gram and Schmidt's columns: they span the same space as a QR decomposition's columns, so the results are the same.
fn orthonormal(matrix: Matrix) -> Matrix {
    let mut columns: Vec<Vec<f64>> = Vec::new();
    for mut column in transposed(&matrix) {
        for done in &columns {
            let along = dot(&column, done);
            column.iter_mut().zip(done).for_each(|(number, done)| *number -= along * done);
        }
        let length = dot(&column, &column).sqrt();
        columns.push(column.into_iter().map(|number| number / length).collect());
    }
    transposed(&columns)
}
