//! The statistics of benches: quartiles of samples, and ratios with intervals. Pure.
//!
//! Times on a shared machine have no normal distribution: noise only ever adds. So nothing here assumes one. An interval comes
//! from the order of the values alone, and contains the true median in at least 95 of 100 benches. It needs no random numbers, so
//! the same samples always give the same verdict.

/// The confidence that an interval needs for a verdict.
pub(super) const CONFIDENCE: f64 = 0.95;
/// With fewer pairs no interval of the sign test has it: `1 - 2 / 2^n`.
pub(super) const LEAST_ROUNDS: usize = 6;
/// Above this product of the numbers of samples the normal approximation of Mann and Whitney's U is as good as its exact distribution.
const EXACT: usize = 2500;
/// The 97.5th percentile of the normal distribution.
const Z: f64 = 1.959_963_984_540_054;

/// The quartiles of samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub(super) lower: f64,
    pub(super) median: f64,
    pub(super) upper: f64,
}

/// A ratio of two sides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ratio {
    /// The estimate.
    pub(super) median: f64,
    /// The interval's ends.
    pub(super) low: f64,
    pub(super) high: f64,
    /// The interval's confidence, between 0 and 1. With few rounds it is less than [`CONFIDENCE`].
    pub(super) confidence: f64,
}

/// What a ratio's interval shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    /// It is below 1.
    Less,
    /// It is above 1.
    More,
    /// The interval contains 1.
    NoDifference,
    /// There are too few rounds for an interval of [`CONFIDENCE`].
    TooFewRounds,
}

impl Spread {
    /// The quartiles of samples in any order, interpolated as NumPy does by default. `None` without samples.
    pub(super) fn of(samples: &[f64]) -> Option<Self> {
        let sorted = sorted(samples.to_vec());
        let at = |part: f64| {
            let place = part * (sorted.len() - 1) as f64;
            let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
            below + (above - below) * place.fract()
        };
        (!sorted.is_empty()).then(|| Spread { lower: at(0.25), median: at(0.5), upper: at(0.75) })
    }
}

impl Ratio {
    /// Ours to theirs, measured in pairs: the median of the pairs' ratios. The interval is that of the sign test (the order
    /// statistics of the ratios). `None` without samples, or if one is not positive: a selection would show too much.
    pub(super) fn paired(ours: &[f64], theirs: &[f64]) -> Option<Self> {
        let (ours, theirs) = (positive(ours)?, positive(theirs)?);
        let ratios = sorted(ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect());
        Self::between(&ratios, |outside| below_by_chance(ratios.len(), outside))
    }

    /// `after` to `before`, measured at different times: the median of the ratios of all pairs (Hodges and Lehmann's estimate on
    /// a logarithmic scale). The interval is that of Mann and Whitney's test. `None` without samples, or if one is not positive.
    pub(super) fn unpaired(after: &[f64], before: &[f64]) -> Option<Self> {
        let (after, before) = (positive(after)?, positive(before)?);
        let ratios = sorted(after.iter().flat_map(|after| before.iter().map(move |before| after / before)).collect());
        let tails = u_tails(after.len(), before.len());
        Self::between(&ratios, |outside| tails.get(outside).copied().unwrap_or(1.0))
    }

    /// The narrowest interval whose ends are as far from the ends of `ratios` and that has the confidence; if there is none, the
    /// whole range. `missed(k)` is the probability that the true ratio is below the value that has `k` others below it.
    fn between(ratios: &[f64], missed: impl Fn(usize) -> f64) -> Option<Self> {
        let median = Spread::of(ratios)?.median;
        let enough = |outside: &usize| 2.0 * missed(*outside) <= 1.0 - CONFIDENCE;
        let outside = (0..ratios.len().div_ceil(2)).take_while(enough).last().unwrap_or(0);
        let (low, high) = (ratios[outside], ratios[ratios.len() - 1 - outside]);
        Some(Ratio { median, low, high, confidence: (1.0 - 2.0 * missed(outside)).max(0.0) })
    }

    /// What the interval shows.
    pub(super) fn shown(&self) -> Shown {
        match self {
            ratio if ratio.confidence < CONFIDENCE => Shown::TooFewRounds,
            ratio if ratio.high < 1.0 => Shown::Less,
            ratio if ratio.low > 1.0 => Shown::More,
            _ => Shown::NoDifference,
        }
    }
}

/// The samples, if all are above 0.
fn positive(samples: &[f64]) -> Option<&[f64]> {
    samples.iter().all(|sample| *sample > 0.0).then_some(samples)
}

fn sorted(mut samples: Vec<f64>) -> Vec<f64> {
    samples.sort_unstable_by(f64::total_cmp);
    samples
}

/// The probability that at most `outside` of `count` values are below their distribution's median.
fn below_by_chance(count: usize, outside: usize) -> f64 {
    let mut term = 0.5_f64.powi(count as i32);
    let mut sum = term;
    for taken in 0..outside.min(count) {
        term *= (count - taken) as f64 / (taken + 1) as f64;
        sum += term;
    }
    sum
}

/// For each u, the probability that Mann and Whitney's U of `m` and `n` samples of one distribution is at most u.
fn u_tails(m: usize, n: usize) -> Vec<f64> {
    if m * n > EXACT {
        return normal_tails(m, n);
    }
    // counts[j][u]: the probability of u with the samples so far and j of the others. The greatest of all is one of ours with
    // probability i / (i + j), and is then above all j others.
    let certain = || std::iter::once(1.0).chain(std::iter::repeat(0.0)).take(m * n + 1).collect::<Vec<f64>>();
    let mut counts: Vec<Vec<f64>> = (0..=n).map(|_| certain()).collect();
    for i in 1..=m {
        let mut next = vec![certain()];
        for j in 1..=n {
            let ours = i as f64 / (i + j) as f64;
            let of = |u: usize| {
                let above = u.checked_sub(j).map_or(0.0, |rest| counts[j][rest]);
                ours * above + (1.0 - ours) * next[j - 1][u]
            };
            let row = (0..=m * n).map(of).collect();
            next.push(row);
        }
        counts = next;
    }
    let sum = |sum: &mut f64, probability: &f64| {
        *sum += probability;
        Some(*sum)
    };
    counts[n].iter().scan(0.0, sum).collect()
}

/// The same by a normal distribution. Only one point matters: how many values may lie outside the interval.
fn normal_tails(m: usize, n: usize) -> Vec<f64> {
    let (mean, count) = ((m * n) as f64 / 2.0, (m * n) as f64);
    let deviation = (count * (m + n + 1) as f64 / 12.0).sqrt();
    let limit = mean - Z * deviation - 0.5;
    // A little less than the rest of the confidence, so that rounding never makes it more.
    let tail = 0.499 * (1.0 - CONFIDENCE);
    (0..=m * n).map(|u| if u as f64 <= limit { tail } else { 1.0 }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn computes_quartiles_as_numpy_does() {
        // numpy.percentile([7, 1, 3, 9], [25, 50, 75])
        assert_eq!(Spread::of(&[7.0, 1.0, 3.0, 9.0]), Some(Spread { lower: 2.5, median: 5.0, upper: 7.5 }));
        assert_eq!(Spread::of(&[4.0]), Some(Spread { lower: 4.0, median: 4.0, upper: 4.0 }));
        assert_eq!(Spread::of(&[]), None);
    }

    /// W. J. Conover, "Practical Nonparametric Statistics", table of the sign test's intervals of a median.
    #[test]
    fn leaves_out_as_many_pairs_as_the_sign_test_allows() {
        let outside = |count: u32| {
            let ours: Vec<f64> = (1..=count).map(f64::from).collect();
            let ratio = Ratio::paired(&ours, &vec![1.0; ours.len()]).unwrap();
            (ratio.low, ratio.high, (ratio.confidence * 1e4).round() / 1e4)
        };
        assert_eq!(outside(5), (1.0, 5.0, 0.9375));
        assert_eq!(outside(6), (1.0, 6.0, 0.9688));
        assert_eq!(outside(9), (2.0, 8.0, 0.9609));
        assert_eq!(outside(12), (3.0, 10.0, 0.9614));
        assert_eq!(outside(20), (6.0, 15.0, 0.9586));
    }

    /// H. B. Mann and D. R. Whitney, "On a test of whether one of two random variables is stochastically larger than the other"
    /// (1947); critical values of two sides at 5 %: U is significant up to these.
    #[test]
    fn knows_the_critical_values_of_u() {
        for (m, n, critical) in [(4, 4, 0), (5, 5, 2), (6, 8, 8), (8, 8, 13), (10, 10, 23), (7, 20, 34)] {
            let tails = u_tails(m, n);
            assert!(2.0 * tails[critical] <= 0.05 && 2.0 * tails[critical + 1] > 0.05, "{m} {n}");
            assert!((tails[m * n] - 1.0).abs() < 1e-9);
        }
        assert!(2.0 * u_tails(3, 3)[0] > 0.05);
    }

    #[test]
    fn approximates_u_where_there_are_many_samples() {
        let significant = |tails: &[f64]| tails.iter().take_while(|tail| 2.0 * **tail <= 0.05).count();
        let (exact, normal) = (significant(&u_tails(50, 50)), significant(&normal_tails(50, 50)));
        assert!(exact.abs_diff(normal) <= 2, "{exact} {normal}");
    }

    #[test]
    fn judges_pairs_by_their_own_rounds() {
        // The machine becomes ten times slower half way, and ours is a fifth faster in each round.
        let theirs = [1.0, 1.1, 0.9, 10.0, 11.0, 9.0, 10.5];
        let ours: Vec<f64> = theirs.iter().map(|time| 0.8 * time).collect();
        let ratio = Ratio::paired(&ours, &theirs).unwrap();
        assert!((ratio.median - 0.8).abs() < 1e-12 && ratio.shown() == Shown::Less, "{ratio:?}");
        let ratio = Ratio::paired(&theirs, &ours).unwrap();
        assert_eq!(ratio.shown(), Shown::More);
        // The same samples without their rounds show nothing.
        assert_eq!(Ratio::unpaired(&ours, &theirs).unwrap().shown(), Shown::NoDifference);
    }

    #[test]
    fn shows_no_difference_between_a_bench_and_itself() {
        let samples = [1.0, 1.2, 0.9, 1.1, 1.05, 0.95, 1.15, 0.99];
        let other = [1.02, 0.97, 1.1, 1.18, 0.93, 1.0, 1.07, 1.12];
        for ratio in [Ratio::unpaired(&samples, &samples), Ratio::unpaired(&samples, &other)].map(Option::unwrap) {
            assert!(ratio.low <= 1.0 && 1.0 <= ratio.high && ratio.shown() == Shown::NoDifference, "{ratio:?}");
        }
    }

    #[test]
    fn shows_a_difference_between_benches_that_hardly_overlap() {
        let before = [1.0, 1.1, 1.05, 0.98, 1.02, 1.07];
        let after: Vec<f64> = before.iter().map(|time| 1.3 * time).collect();
        let ratio = Ratio::unpaired(&after, &before).unwrap();
        assert!((ratio.median - 1.3).abs() < 0.02 && ratio.low > 1.15 && ratio.high < 1.45, "{ratio:?}");
        assert_eq!((ratio.shown(), Ratio::unpaired(&before, &after).unwrap().shown()), (Shown::More, Shown::Less));
    }

    #[test]
    fn claims_nothing_from_few_rounds() {
        let ratio = Ratio::paired(&[1.0, 1.0], &[9.0, 8.0]).unwrap();
        assert_eq!((ratio.confidence, ratio.shown()), (0.5, Shown::TooFewRounds));
        assert_eq!(Ratio::unpaired(&[1.0; 3], &[9.0; 3]).unwrap().shown(), Shown::TooFewRounds);
        assert_eq!(Ratio::paired(&[1.0], &[9.0]).unwrap().confidence, 0.0);
        assert_eq!((Ratio::paired(&[], &[]), Ratio::paired(&[0.0], &[1.0])), (None, None));
        assert_eq!(Ratio::unpaired(&[1.0], &[]), None);
    }
}
