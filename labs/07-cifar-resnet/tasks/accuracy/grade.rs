//! Grades `accuracy`: three ranks whose shares, batches and accuracies differ.

use lockstep_grading::{Claim, Finding, Runner, Verdict, causes, explain, given};

/// The number of right predictions and of pictures in a batch.
type Counts = (usize, usize);
/// Predicted and right classes.
type Batch = (Vec<i64>, Vec<i64>);

const TOLERANCE: f64 = 1e-9;

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    let times = random.below(1..6);
    let counts = |of: &[&[Counts]]| -> Vec<Vec<Counts>> {
        of.iter().map(|batches| batches.iter().map(|(right, all)| (right * times, all * times)).collect()).collect()
    };
    // The means over batches, over ranks and over pictures all differ.
    let shares: [&[Counts]; 3] = [&[(4, 4), (3, 4), (0, 1)], &[(1, 4), (1, 3)], &[(1, 4)]];
    // As many as in a real test set: odd numbers of right predictions and of pictures, beyond 2048.
    let many: Vec<Vec<Counts>> = vec![vec![(1200, 1301)], vec![(1100, 1251)], vec![(1, 1)]];
    let cases = [counts(&shares), counts(&[shares[0], shares[1], &[]]), many];
    let mut batch = |(right, all): &Counts| -> Batch {
        let classes: Vec<i64> = (0..*all).map(|_| random.below(0..10) as i64).collect();
        let wrong = |(place, class): (usize, &i64)| if place < *right { *class } else { (class + 1) % 10 };
        (classes.iter().enumerate().map(wrong).collect(), classes)
    };
    let mut inputs: Vec<Vec<Vec<Batch>>> = Vec::new();
    for ranks in &cases {
        inputs.push(ranks.iter().map(|batches| batches.iter().map(&mut batch).collect()).collect());
    }
    let outputs = runner
        .call::<_, Option<f64>>(3, &inputs)
        .map_err(|error| given(explain(error, why), |case| described(&cases[case])))?;
    let observed = |case| outputs.all(case).map(|accuracy| accuracy.unwrap_or(f64::NAN)).collect::<Vec<f64>>();
    let seen: Vec<(&Vec<Vec<Counts>>, Vec<f64>)> = cases.iter().zip((0..).map(observed)).collect();
    // What a mistake gives on a rank without pictures depends on how that rank was thought of.
    let full = || seen.iter().filter(|(counts, _)| counts.iter().all(|batches| !batches.is_empty()));
    let causes = causes(&CAUSES, |mistake| {
        full().all(|(counts, observed)| (0..).zip(observed).all(|(rank, seen)| is(mistake(counts, rank), *seen)))
    });
    seen.iter().try_for_each(|(counts, observed)| check(counts, observed, &causes))
}

fn is(one: f64, other: f64) -> bool {
    (one - other).abs() <= TOLERANCE
}

/// What a mistake gives on a rank.
type Mistake = fn(&[Vec<Counts>], usize) -> f64;

fn own(counts: &[Vec<Counts>], rank: usize) -> f64 {
    share(&counts[rank])
}

fn own_or_zero(counts: &[Vec<Counts>], rank: usize) -> f64 {
    if counts[rank].is_empty() { 0.0 } else { own(counts, rank) }
}

fn hits(batches: &[Counts]) -> f64 {
    batches.iter().map(|batch| batch.0 as f64).sum()
}

fn of_batches(batches: &[Counts]) -> f64 {
    mean(&batches.iter().map(|batch| share(&[*batch])).collect::<Vec<_>>())
}

fn over_ranks(counts: &[Vec<Counts>], of: fn(&[Vec<Counts>], usize) -> f64) -> f64 {
    mean(&(0..counts.len()).map(|rank| of(counts, rank)).collect::<Vec<_>>())
}

const OWN: &str =
    "this rank's own accuracy, reported as that of all ranks: each rank would keep a different model as the best one";
const OWN_PICTURES: &str =
    "the right predictions of all ranks, divided by this rank's pictures: add the pictures over the ranks, too";
const OF_RANKS: &str = "the mean of the ranks' accuracies: a rank with few pictures weighs as much as one with many. Sum right predictions and pictures, \
                        and divide once";
const OF_BATCHES: &str =
    "the mean of the batches' accuracies: a picture in a short batch weighs more than one in a long batch";

/// Mistakes with their diagnoses.
const CAUSES: [(Mistake, &str); 11] = [
    (
        |counts, rank| of_batches(&counts[rank]),
        "this is the mean of the batches' accuracies on this rank alone: a picture in a short batch weighs more, and the other ranks' pictures \
         are missing",
    ),
    (own_or_zero, OWN),
    (|counts, _| own(counts, 0), "rank 0's accuracy, on all ranks: the pictures of the other ranks do not count"),
    (|counts, rank| hits(&counts.concat()) / pictures(&counts[rank]) as f64, OWN_PICTURES),
    (|counts, rank| hits(&counts.concat()) / (pictures(&counts[rank]) * counts.len()) as f64, OWN_PICTURES),
    (|counts, _| over_ranks(counts, own_or_zero), OF_RANKS),
    (|counts, _| of_batches(&counts.concat()), OF_BATCHES),
    (|counts, _| over_ranks(counts, |counts, rank| of_batches(&counts[rank])), OF_BATCHES),
    (
        |counts, _| (0..counts.len()).map(|rank| own_or_zero(counts, rank)).sum(),
        "the sum of the ranks' accuracies: add up right predictions and pictures, and divide once",
    ),
    (
        |counts, _| hits(&counts.concat()) / counts.concat().len() as f64,
        "the right predictions divided by the number of batches: divide by the number of pictures",
    ),
    (
        |counts, _| {
            let as_the_first = |batches: &Vec<Counts>| batches.first().map_or(0, |first| first.1 * batches.len());
            hits(&counts.concat()) / counts.iter().map(as_the_first).sum::<usize>() as f64
        },
        "each batch was counted with the length of its rank's first one: the last batches are shorter. Add up their lengths",
    ),
];

fn check(counts: &[Vec<Counts>], observed: &[f64], causes: &[&str]) -> anyhow::Result<()> {
    let right = share(&counts.concat());
    let given = described(counts);
    for (rank, &seen) in observed.iter().enumerate() {
        let claim = Claim::close(&[right], &[seen], TOLERANCE).on_rank(rank).given(&given);
        let differ = observed.iter().any(|other| (other - seen).abs() > TOLERANCE || other.is_nan() != seen.is_nan());
        let claim = if differ { claim.verdict(Verdict::RanksDisagree) } else { claim };
        claim
            .causes(causes)
            .diagnose_if(
                is(observed[0], right) && observed[1..].iter().all(|other| !is(*other, right)),
                "only rank 0 has the right accuracy: `reduce` leaves the sum on one rank, `all_reduce` on all",
            )
            .diagnose_if(
                seen.is_nan(),
                "NaN: a rank without pictures divides zero by zero. Divide once, by the number of pictures on all ranks",
            )
            .diagnose_if(
                !differ && counts.concat().len() == counts.len() && (seen / right - 1.0).abs() < 0.004,
                "nearly right: are the pictures counted in whole numbers, or in Double? Half precision has only even numbers beyond 2048, and \
                 bfloat16 beyond 256, so neither can count them",
            )
            .or_fail("divide the right predictions of all ranks by the pictures of all ranks")?;
    }
    Ok(())
}

fn why(finding: &Finding) -> Option<String> {
    let left = finding.table.iter().any(|line| line.contains("has finished"));
    let waits = finding.table.iter().any(|line| line.contains("waits in"));
    (finding.verdict == Verdict::Hang && left && waits).then(|| {
        "some ranks wait in a collective that others never call: the ranks have different numbers of batches, and one has none. Add up on \
         each rank first, and let all ranks call one all-reduce at the end"
            .into()
    })
}

fn pictures(batches: &[Counts]) -> usize {
    batches.iter().map(|batch| batch.1).sum()
}

fn share(batches: &[Counts]) -> f64 {
    let (right, all) = batches.iter().fold((0, 0), |sum, batch| (sum.0 + batch.0, sum.1 + batch.1));
    right as f64 / all as f64
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn described(counts: &[Vec<Counts>]) -> String {
    format!("right predictions of pictures, by rank and batch: {}", listed(counts))
}

fn listed(counts: &[Vec<Counts>]) -> String {
    let of_rank = |batches: &Vec<Counts>| {
        let batches: Vec<String> = batches.iter().map(|(right, all)| format!("{right} of {all}")).collect();
        if batches.is_empty() { "none".into() } else { batches.join(", ") }
    };
    counts.iter().map(of_rank).collect::<Vec<_>>().join("; ")
}
