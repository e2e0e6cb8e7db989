//! Grades `alpha_beta`: times of three networks, with noise and one size at which the model does not hold, and backward passes that hide a
//! bucket or none. Each size is off in some case, so an answer that always trusts the same sizes fails.

use lockstep_grading::{Claim, Inputs, Runner, causes, table};
use serde::{Deserialize, Serialize};

/// Relative: noise moves α and β by a hundredth.
const TOLERANCE: f64 = 0.1;
/// A bucket may be rounded to whole bytes.
const BUCKET_TOLERANCE: f64 = 0.01;
/// The largest noise of a time, relative to it.
const NOISE: f64 = 0.02;
/// 4 B to 64 MiB.
const SIZES: std::ops::Range<usize> = 0..13;
/// Of a switch of 25 Gbit, of one of 1 Gbit, and of loopback: α in µs, and β in µs per byte.
const NETWORKS: [(f64, f64); 3] = [(30.0, 4e-4), (200.0, 1e-2), (12.0, 2e-3)];
/// The time in which the backward pass computes a byte of a bucket, in times of sending one.
const HIDES: [f64; 3] = [2.5, 0.6, 1.4];
/// The time of the size at which the model does not hold, in times that it should take.
const OFF: [f64; 2] = [0.35, 6.0];

#[derive(Clone, Debug, Serialize)]
struct Measured {
    times: Vec<(f64, f64)>,
    gradients: f64,
    backward: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
struct Plan {
    alpha: Option<f64>,
    beta: Option<f64>,
    bucket: Option<f64>,
}

/// What was drawn, and what follows from it.
struct AlphaBetaCase {
    measured: Measured,
    line: (f64, f64),
    off: f64,
}

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    let cases: Vec<AlphaBetaCase> = SIZES.map(|which| draw(&mut random, which)).collect();
    let inputs: Vec<&Measured> = cases.iter().map(|case| &case.measured).collect();
    let outputs = runner.call::<_, Plan>(1, &inputs)?;
    let found: Vec<(&AlphaBetaCase, &Plan)> =
        cases.iter().enumerate().map(|(number, case)| (case, outputs.of(0, number))).collect();
    found.iter().try_for_each(|(case, plan)| check_line(case, plan, &found))?;
    found.iter().try_for_each(|(case, plan)| check_bucket(case, plan, &found))
}

/// A case in which the model does not hold at the size `which`.
fn draw(random: &mut Inputs, which: usize) -> AlphaBetaCase {
    let (alpha, beta) = NETWORKS[which % NETWORKS.len()];
    let mut part = |most: f64| most * random.below(0..1001) as f64 / 1000.0;
    let (alpha, beta) = (alpha * (1.0 + part(1.0)), beta * (1.0 + part(1.0)));
    let mut times: Vec<(f64, f64)> = SIZES
        .map(|power| {
            let bytes = 4.0_f64.powi(power as i32 + 1);
            (bytes, (alpha + beta * bytes) * (1.0 - NOISE + part(2.0 * NOISE)))
        })
        .collect();
    times[which].1 *= OFF[which % OFF.len()];
    let off = times[which].0;
    let hides = HIDES[which % HIDES.len()];
    // In some cases, the smallest hidden bucket is larger than all gradients, and so is one that hides only its latency.
    let most = if hides > 1.0 && which % 2 == 1 { 0.9 * alpha / (beta * hides) } else { 400e6 };
    let gradients = (most * random.below(125..1000) as f64 / 1000.0).round();
    let backward = gradients * beta * hides;
    AlphaBetaCase { measured: Measured { times, gradients, backward }, line: (alpha, beta), off }
}

fn check_line(case: &AlphaBetaCase, found: &Plan, all: &[(&AlphaBetaCase, &Plan)]) -> anyhow::Result<()> {
    let (alpha, beta) = case.line;
    let line = found_line(found);
    let gives_it = |wrong: &Line| {
        all.iter().all(|(case, found)| {
            let (line, wrong) = (found_line(found), wrong(&case.measured.times));
            near(line.0, wrong.0, 1e-6) && near(line.1, wrong.1, 1e-6)
        })
    };
    let [alpha_is_right, beta_is_right] = [near(line.0, alpha, TOLERANCE), near(line.1, beta, TOLERANCE)];
    Claim::that(
        alpha_is_right && beta_is_right,
        format!("α = {alpha:.3} µs, β = {beta:.3e} µs a byte, within a tenth"),
        format!("α = {:.3} µs, β = {:.3e} µs a byte", line.0, line.1),
    )
    .given(listed(case))
    .causes(&causes(&OTHER_LINES, gives_it))
    .diagnose_if(alpha_is_right, "α is right, and β is not: of the long messages, all but one show it")
    .diagnose_if(beta_is_right, "β is right, and α is not: of the short messages, all but one show it")
    .or_fail("these are not the line through all sizes but one")
}

/// α and β for times.
type Line = fn(&[(f64, f64)]) -> (f64, f64);

/// Lines that mistakes give.
const OTHER_LINES: [(Line, &str); 3] = [
    (
        |times| fit(times, |_| 1.0),
        "the squares of absolute errors depend almost only on the longest messages, which take a thousand times as long as short ones: \
         divide each error by its time",
    ),
    (
        |times| fit(times, |time| 1.0 / (time * time)),
        "the size that does not fit the model is included, and pulls the line away from all others: find the point with the \
         largest relative error, and fit without it",
    ),
    (
        through_ends,
        "that is the line through the first and the last time alone: the model may fail at one of them, and only the other sizes show it",
    ),
];

/// With the learner's own α and β, whose error the bucket would amplify.
fn check_bucket(case: &AlphaBetaCase, found: &Plan, all: &[(&AlphaBetaCase, &Plan)]) -> anyhow::Result<()> {
    let measured = &case.measured;
    let bucket = hidden(found_line(found), measured);
    let words =
        |bucket: &Option<f64>| bucket.map_or("no bucket is hidden".to_owned(), |bytes| format!("{bytes:.0} bytes"));
    let gives_it =
        |wrong: &Bucket| all.iter().all(|(case, found)| is_bucket(found, wrong(found_line(found), &case.measured)));
    Claim::that(is_bucket(found, bucket), words(&bucket), words(&found.bucket))
        .given(listed(case))
        .causes(&causes(&OTHER_BUCKETS, gives_it))
        .diagnose_if(
            found.bucket.is_none() && bucket.is_some_and(|bytes| bytes > measured.gradients),
            "a bucket is hidden, and it is larger than all gradients together: return it, even if there are not as many gradients",
        )
        .diagnose_if(
            bucket.is_none(),
            "no bucket is hidden: the network takes longer for a byte than the backward pass needs to compute one, so larger buckets fall \
             back further",
        )
        .diagnose_if(
            found.bucket.is_none(),
            "a bucket of this size takes at least as long to fill as to send, so there is one that is hidden",
        )
        .or_fail("a bucket of b bytes is hidden if α + β·b is at most the time in which the backward pass computes b bytes")
}

/// The bucket for α and β.
type Bucket = fn((f64, f64), &Measured) -> Option<f64>;

fn hidden((alpha, beta): (f64, f64), measured: &Measured) -> Option<f64> {
    let gain = measured.backward / measured.gradients - beta;
    (gain > 0.0).then(|| alpha / gain)
}

/// Buckets that mistakes give.
const OTHER_BUCKETS: [(Bucket, &str); 3] = [
    (
        |(alpha, beta), _| Some(alpha / beta),
        "that is n½, at which a message's bytes take as long as its latency: it does not depend on the backward pass, which has to \
         take as long as the message",
    ),
    (
        |(alpha, _), measured| Some(alpha * measured.gradients / measured.backward),
        "in that time the backward pass hides only latency: the bucket's own bytes take time, too",
    ),
    (
        |line, measured| hidden(line, measured).map(|bytes| bytes.min(measured.gradients)),
        "the bucket was limited to the bytes of all gradients, and one of that size takes longer to send than to fill: return the \
         larger one, even if there are not as many gradients",
    ),
];

fn is_bucket(found: &Plan, right: Option<f64>) -> bool {
    match (found.bucket, right) {
        (Some(found), Some(right)) => near(found, right, BUCKET_TOLERANCE),
        (found, right) => found.is_none() && right.is_none(),
    }
}

fn found_line(found: &Plan) -> (f64, f64) {
    (found.alpha.unwrap_or(f64::NAN), found.beta.unwrap_or(f64::NAN))
}

fn near(found: f64, right: f64, tolerance: f64) -> bool {
    (found / right - 1.0).abs() <= tolerance
}

/// The line with the least weighted squares.
fn fit(times: &[(f64, f64)], weight: fn(f64) -> f64) -> (f64, f64) {
    let sum = |of: fn(f64, f64) -> f64| times.iter().map(|(n, t)| weight(*t) * of(*n, *t)).sum::<f64>();
    let (one, n, nn) = (sum(|_, _| 1.0), sum(|n, _| n), sum(|n, _| n * n));
    let (t, nt) = (sum(|_, t| t), sum(|n, t| n * t));
    let determinant = one * nn - n * n;
    ((t * nn - nt * n) / determinant, (nt * one - t * n) / determinant)
}

fn through_ends(times: &[(f64, f64)]) -> (f64, f64) {
    let ((few, short), (many, long)) = (times[0], times[times.len() - 1]);
    let beta = (long - short) / (many - few);
    (short - beta * few, beta)
}

fn listed(case: &AlphaBetaCase) -> String {
    let Measured { times, gradients, backward } = &case.measured;
    let row = |(bytes, time): &(f64, f64)| {
        let holds = if *bytes == case.off { "does not hold" } else { "" };
        [format!("{bytes}"), format!("{time:.1}"), holds.to_owned()]
    };
    let rows: Vec<[String; 3]> = times.iter().map(row).collect();
    format!(
        "gradients of {gradients} bytes in a backward pass of {backward:.0} µs\n{}",
        table(["bytes", "µs", "the model"], &rows)
    )
}
