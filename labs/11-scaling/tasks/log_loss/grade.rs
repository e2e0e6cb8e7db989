//! Grades `log_loss`: the log on every rank, and the operations that it took.

use lockstep_grading::{Claim, Numbers, Runner, Verdict, close, counted};
use serde::Deserialize;

const RANKS: usize = 3;

#[derive(Deserialize)]
struct Counted {
    /// The log, and the groups that the answer has made, which only rank 0 knows.
    result: (Numbers, u64),
    calls: u64,
}

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    let every = random.below(4..9);
    // The last line covers fewer steps.
    let steps = every * random.below(3..6) + random.below(1..every);
    let losses: Vec<Vec<f64>> = (0..RANKS)
        .map(|rank| random.numbers(steps).iter().map(|number| number + 10.0 * (rank + 1) as f64).collect())
        .collect();
    let outputs = runner.call::<_, Counted>(RANKS, &[(&losses, every)])?;
    let given = format!("{} on {RANKS} ranks, a line for {}", counted(steps, "step"), counted(every, "step"));
    let all: Vec<&[f64]> = outputs.all(0).map(|found| &found.result.0[..]).collect();
    for rank in 0..RANKS {
        check_values(&given, &losses, every, rank, &all)?;
    }
    let lines = steps.div_ceil(every) as u64;
    for (rank, found) in outputs.all(0).enumerate() {
        let (calls, others) = (found.calls, found.result.1);
        Claim::that(
            (1..=lines).contains(&calls) && others == 0,
            format!("at least 1 operation, and at most {lines}"),
            format!("{}, and {}", counted(calls, "operation"), counted(others, "further group")),
        )
            .on_rank(rank)
            .given(&given)
            .diagnose_if(
                others > 0,
                "the log is right, but it was exchanged in another group than the given one, where ranks wait just as long",
            )
            .diagnose_if(
                calls >= 2 * steps as u64,
                "the log is right, but all ranks stop for it twice in each step: add up the losses on each rank, and exchange once for a \
                 line. A barrier after an all-reduce has no effect",
            )
            .diagnose_if(
                calls >= steps as u64,
                "the log is right, but it takes an operation for each step, which costs the same whether you wait for it at once or \
                 later: add up the losses on each rank, and exchange once for a line",
            )
            .diagnose_if(calls == 0, "the log is right, but nothing was exchanged in the group")
            .or_fail("the log is right, but it takes more operations than it has lines")?;
    }
    Ok(())
}

fn check_values(given: &str, losses: &[Vec<f64>], every: usize, rank: usize, all: &[&[f64]]) -> anyhow::Result<()> {
    let mean = |numbers: &[f64]| numbers.iter().sum::<f64>() / numbers.len() as f64;
    let lines = |of: &dyn Fn(&[f64]) -> f64| -> Vec<Vec<f64>> {
        losses.iter().map(|losses| losses.chunks(every).map(of).collect()).collect()
    };
    let over_ranks = |lines: Vec<Vec<f64>>| -> Vec<f64> {
        (0..lines[0].len()).map(|line| mean(&lines.iter().map(|of| of[line]).collect::<Vec<_>>())).collect()
    };
    let expected = over_ranks(lines(&mean));
    let so_far: Vec<Vec<f64>> = losses
        .iter()
        .map(|losses| (1..=expected.len()).map(|line| mean(&losses[..losses.len().min(line * every)])).collect())
        .collect();
    let found = all[rank];
    let is = |other: &[f64]| all.iter().all(|found| close(other, found, 1e-9));
    let own = all.iter().zip(lines(&mean)).all(|(found, own)| close(&own, found, 1e-9));
    let over_all = |values: &[f64]| values.iter().map(|value| value * RANKS as f64).collect::<Vec<_>>();
    let sums = over_ranks(lines(&|losses| losses.iter().sum()));
    let whole = &expected[..expected.len() - 1];
    Claim::close(&expected, found, 1e-9)
        .on_rank(rank)
        .given(given)
        .cause_if(own, "this is the rank's own loss: the log is that of all ranks")
        .verdict(if all.iter().all(|other| close(found, other, 1e-9)) { Verdict::WrongValue } else { Verdict::RanksDisagree })
        .cause_if(
            is(&over_ranks(lines(&|losses| losses[losses.len() - 1]))),
            "a line covers all of its steps, and this is the loss of the last one of them",
        )
        .diagnose_if(
            rank > 0 && close(&expected, all[0], 1e-9),
            "rank 0 has the log, and this rank does not: `reduce` leaves the sum on one rank, and the log is needed on every rank",
        )
        .cause_if(
            is(&over_all(&expected)) || is(&over_all(&sums)),
            format!("the sum over the ranks, not their mean: divide by the number of ranks, {RANKS}, too"),
        )
        .cause_if(is(&sums), "the sum over the steps of a line, not their mean: divide by the number of its steps, too")
        .cause_if(
            is(&over_ranks(so_far)),
            "each line covers all steps from the first on: its sum must begin again with every line",
        )
        .diagnose_if(
            found.len() == whole.len() && close(&whole[..whole.len() - 1], &found[..whole.len() - 1], 1e-9) && !is(whole),
            "the last line, which covers fewer steps, was joined with the one before: it must be a separate line",
        )
        .diagnose_if(is(whole), "the last line is missing: it covers fewer steps, but they were trained")
        .diagnose_if(
            found.len() == expected.len() && close(whole, &found[..whole.len()], 1e-9),
            "the last line covers fewer steps, so its divisor is smaller",
        )
        .or_fail("this is not the mean over the steps of a line and over all ranks")
}
