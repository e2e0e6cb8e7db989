//! Grades `line`: compares the ranks with one process that trains on all points.

use lockstep_grading::{Claim, Numbers, Runner, Verdict, close};

/// Lines that differ by less are the same: the order of a sum changes its rounding.
const TOLERANCE: f64 = 1e-9;
/// Small enough to converge on points with x from -4 to 4, even if the gradients of three ranks are added up.
const RATE: f64 = 0.01;

/// More than a gradient of two numbers, and a count.
const BYTES: usize = 64;

type Points = Vec<(f64, f64)>;

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    for ranks in [2, 3] {
        let mut random = runner.random();
        // Many points: their bytes are several times those of the gradients.
        let batch_size = ranks * random.below(8..12);
        // The last batch is smaller, but the ranks still divide it evenly.
        let points = points(random.numbers(batch_size * 4 + ranks), ranks);
        let shares: Vec<Points> = (0..ranks).map(|rank| share(&points, rank, ranks)).collect();
        let outputs = runner.call::<_, (Numbers, usize)>(ranks, &[(&shares, batch_size, RATE)])?;
        let lines: Vec<&Numbers> = outputs.all(0).map(|(line, _)| line).collect();
        let given = format!("{} points, {ranks} ranks, batch size {batch_size}, learning rate {RATE}", points.len());
        agree(&given, &shares, batch_size, &lines)?;
        check(&given, &points, &shares, batch_size, lines[0])?;
        for (rank, (_, bytes)) in outputs.all(0).enumerate() {
            check_bytes(&given, rank, points.len().div_ceil(batch_size), *bytes)?;
        }
    }
    Ok(())
}

/// Points near a line. Each rank's share lies higher than the previous one, so no rank can find the common line alone.
fn points(x: Vec<f64>, ranks: usize) -> Points {
    let y = |(index, x): (usize, &f64)| 1.5 * x + 0.5 + (index % ranks) as f64;
    x.iter().enumerate().map(|at| (*at.1, y(at))).collect()
}

fn share(points: &[(f64, f64)], rank: usize, ranks: usize) -> Points {
    points.iter().skip(rank).step_by(ranks).copied().collect()
}

/// The line that one process fits to these points.
fn trained(points: &[(f64, f64)], batch_size: usize, rate: f64) -> Vec<f64> {
    let mut line = [0.0, 0.0];
    for batch in points.chunks(batch_size) {
        let error = |(x, y): &(f64, f64)| x * line[0] + line[1] - y;
        let mean = |sum: f64| 2.0 * sum / batch.len() as f64;
        let gradient = [mean(batch.iter().map(|at| error(at) * at.0).sum()), mean(batch.iter().map(error).sum())];
        line = [line[0] - rate * gradient[0], line[1] - rate * gradient[1]];
    }
    line.into()
}

/// The same, where each batch counts as full.
fn by_batch_size(points: &[(f64, f64)], batch_size: usize) -> Vec<f64> {
    let (full, last) = points.split_at(points.len() / batch_size * batch_size);
    let mut line = trained(full, batch_size, RATE);
    let error = |(x, y): &(f64, f64)| x * line[0] + line[1] - y;
    let mean = |sum: f64| 2.0 * sum / batch_size as f64;
    let gradient = [mean(last.iter().map(|at| error(at) * at.0).sum()), mean(last.iter().map(error).sum())];
    line = vec![line[0] - RATE * gradient[0], line[1] - RATE * gradient[1]];
    line
}

fn agree(given: &str, shares: &[Points], batch_size: usize, lines: &[&Numbers]) -> anyhow::Result<()> {
    let alone = |batch_size: usize| {
        lines.iter().zip(shares).all(|(line, share)| close(&trained(share, batch_size, RATE), line, TOLERANCE))
    };
    let observed: Vec<String> =
        lines.iter().enumerate().map(|(rank, line)| format!("rank {rank}: {:?}", line.0)).collect();
    let same = lines.windows(2).all(|pair| close(pair[0], pair[1], TOLERANCE) || pair.iter().any(|line| has_nan(line)));
    Claim::that(same, "the same line on every rank", observed.join(", "))
        .given(given)
        .verdict(Verdict::RanksDisagree)
        .diagnose_if(
            alone(batch_size) || alone((batch_size / shares.len()).max(1)),
            "each rank has fitted its own line to its share: average the gradients over the ranks before each step",
        )
        .or_fail("the ranks take different steps, so their lines drift apart")
}

fn has_nan(line: &[f64]) -> bool {
    line.iter().any(|number| number.is_nan())
}

fn check(given: &str, points: &Points, shares: &[Points], batch_size: usize, line: &Numbers) -> anyhow::Result<()> {
    let ranks = shares.len();
    let seen = |batch_size: usize, rate: f64| close(&trained(points, batch_size, rate), line, TOLERANCE);
    let averaged = |batch_size: usize| {
        let lines: Vec<Vec<f64>> = shares.iter().map(|share| trained(share, batch_size, RATE)).collect();
        let mean = |which: usize| lines.iter().map(|line| line[which]).sum::<f64>() / ranks as f64;
        close(&[mean(0), mean(1)], line, TOLERANCE)
    };
    Claim::close(&trained(points, batch_size, RATE), line, TOLERANCE)
        .on_rank(0)
        .given(format!("{given}; expected is the line that one process fits to all points"))
        .cause_if(
            seen(batch_size * ranks, RATE),
            "each rank takes `batch_size` points per step, so there are too few steps of too many points: `batch_size` counts the points of \
             all ranks together",
        )
        .cause_if(
            seen(batch_size, RATE * ranks as f64),
            "the gradients are added up over the ranks, not averaged: as if the learning rate were multiplied by the world size",
        )
        .cause_if(
            seen(batch_size * ranks, RATE * ranks as f64),
            "the gradients are added up over the ranks, not averaged, and each rank takes `batch_size` points in a step",
        )
        .cause_if(
            averaged(batch_size / ranks) || averaged(batch_size),
            "each rank has trained alone, and the lines are averaged at the end: the result differs from training together. \
             The ranks must agree in every step",
        )
        .cause_if(
            close(&by_batch_size(points, batch_size), line, TOLERANCE),
            "the last batch has fewer points than `batch_size`, but its sum was still divided by `batch_size`: divide by the number of \
             points in the batch, on all ranks",
        )
        .or_fail("all ranks have the same line, but one process with all points finds another one")
}

/// Checks that the ranks exchange what follows from their points, and not the points.
fn check_bytes(given: &str, rank: usize, steps: usize, bytes: usize) -> anyhow::Result<()> {
    let most = steps * BYTES;
    Claim::that(bytes <= most, format!("at most {most} bytes in {steps} steps"), format!("{bytes} bytes"))
        .on_rank(rank)
        .given(given)
        .or_fail(
            "the line is right, but the points themselves are sent, and a rank that gets all of them does the work of one process: compute \
             on the rank's own share, and exchange the gradients",
        )
}
