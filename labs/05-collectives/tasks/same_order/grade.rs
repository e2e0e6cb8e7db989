//! Grades `same_order`: metrics of 3 ranks in hash maps, whose order differs between ranks.

use std::collections::{BTreeMap, HashMap};

use lockstep_grading::{Claim, Runner, causes, given, rows};

/// Two differ in one letter in the middle: neither their first or last letters nor their lengths give them an order. Two differ in case only.
const NAMES: [&str; 6] = ["loss", "top1_mean", "top5_mean", "recall", "F1", "f1"];
const RANKS: usize = 3;
/// Wide enough for single precision.
const TOLERANCE: f64 = 1e-6;

/// The metrics of one rank, or their means over all ranks.
type Metrics = BTreeMap<String, f64>;

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    // Enough digits that no two sums are equal by chance, few enough that sums are exact.
    let mut value = || random.below(1..1 << 30) as f64 / f64::from(1 << 30);
    let mut metrics = || -> Metrics { NAMES.iter().map(|name| ((*name).to_owned(), value())).collect() };
    let cases: Vec<Vec<Metrics>> = (0..2).map(|_| (0..RANKS).map(|_| metrics()).collect()).collect();
    let outputs = runner
        .call::<_, HashMap<String, Option<f64>>>(RANKS, &cases)
        .map_err(|error| given(error, |_| format!("the metrics {NAMES:?} on {RANKS} ranks")))?;
    for (case, given) in cases.iter().enumerate() {
        let read = |observed: &HashMap<String, Option<f64>>| -> Metrics {
            observed.iter().map(|(name, mean)| (name.clone(), mean.unwrap_or(f64::NAN))).collect()
        };
        let all: Vec<Metrics> = outputs.all(case).map(read).collect();
        // Whether all ranks have what this mistake gives, of a rank and the ranks' values of a metric.
        let all_are = |mistake: Mistake| {
            let is = |rank: usize, name: &str| {
                let of_ranks: Vec<f64> = given.iter().map(|metrics| metrics[name]).collect();
                all[rank].get(name).is_some_and(|seen| (mistake(rank, &of_ranks) - seen).abs() <= TOLERANCE)
            };
            (0..RANKS).all(|rank| NAMES.iter().all(|name| is(rank, name)))
        };
        let causes = causes(&CAUSES, |mistake| all_are(*mistake));
        for (rank, observed) in all.iter().enumerate() {
            check(rank, given, observed, &causes)?;
        }
    }
    Ok(())
}

type Mistake = fn(usize, &[f64]) -> f64;

const CAUSES: [(Mistake, &str); 4] = [
    (|_, values| values.iter().sum::<f64>() / NAMES.len() as f64, "divided by the number of metrics, not of ranks"),
    (|_, values| values.iter().sum(), "summed over the ranks, not averaged"),
    (|rank, values| values[rank], "this is the rank's own value: nothing was reduced"),
    (|_, values| values[0], "this is rank 0's value, on all ranks: those of the other ranks do not count"),
];

fn check(rank: usize, given: &[Metrics], observed: &Metrics, causes: &[&str]) -> anyhow::Result<()> {
    let names = |metrics: &Metrics| metrics.keys().cloned().collect::<Vec<_>>();
    Claim::equal(&names(&given[0]), &names(observed))
        .on_rank(rank)
        .given("metrics of these names on every rank")
        .or_fail("the result must have a mean for each metric, under its name")?;
    for name in NAMES {
        let of_ranks: Vec<f64> = given.iter().map(|metrics| metrics[name]).collect();
        let sum: f64 = of_ranks.iter().sum();
        let mixed = mixed(given, observed[name] * RANKS as f64);
        let mean = |name: &str| given.iter().map(|metrics| metrics[name]).sum::<f64>() / RANKS as f64;
        let moved = NAMES.into_iter().any(|of| of != name && (mean(of) - observed[name]).abs() <= TOLERANCE);
        Claim::close(&[sum / RANKS as f64], &[observed[name]], TOLERANCE).on_rank(rank).given(format!(
            "`{name}` on the ranks\n{}",
            rows("rank", &of_ranks.iter().map(|one| [*one]).collect::<Vec<_>>())
        ))
            .causes(causes)
            .diagnose_if(
                moved,
                "this is the right mean of another metric: the ranks have reduced in the same order, but the names were then taken in a \
                 different order, that of the map. Keep the names in the order of the values",
            )
            .diagnose_if(
                mixed.is_some(),
                format!(
                    "`{name}` holds the mean of {}: the ranks reduce in different orders. A collective does not know names: the \
                     first call on one rank meets the first call on the others, and the first number in a tensor meets the first in theirs",
                    mixed.unwrap_or_default().join(", ")
                ),
            )
            .or_fail("this is not the mean over the ranks")?;
    }
    Ok(())
}

/// The metrics, one from each rank, whose sum this is, if there are any.
fn mixed(given: &[Metrics], sum: f64) -> Option<Vec<String>> {
    let Some((own, others)) = given.split_first() else { return (sum.abs() <= TOLERANCE).then(Vec::new) };
    own.iter().find_map(|(name, value)| {
        let mut rest = mixed(others, sum - value)?;
        rest.insert(0, format!("rank {}'s {name}", RANKS - given.len()));
        Some(rest)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_metrics_of_a_sum() {
        let metrics = |loss: f64, f1: f64| Metrics::from([("loss".into(), loss), ("f1".into(), f1)]);
        let given = [metrics(1.0, 10.0), metrics(2.0, 20.0), metrics(4.0, 40.0)];
        assert_eq!(mixed(&given, 25.0).unwrap(), ["rank 0's loss", "rank 1's f1", "rank 2's loss"]);
        assert_eq!(mixed(&given, 26.0), None);
    }
}
