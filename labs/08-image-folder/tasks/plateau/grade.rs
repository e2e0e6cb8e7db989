//! Grades `plateau`: compares the rate after each epoch with the rule of `ReduceLROnPlateau` (`torch/optim/lr_scheduler.py`).

use lockstep_grading::{Claim, Runner, causes, close};

/// Rate, factor, patience, losses. `None` stands for NaN.
type Case = (f64, f64, u64, Vec<Option<f64>>);

const THRESHOLD: f64 = 1e-4;
const TOLERANCE: f64 = 1e-12;

/// A common mistake.
#[derive(Clone, Copy, PartialEq)]
enum Flaw {
    None,
    Impatient,
    Patient,
    CountsAfter,
    NoNewCount,
    AddsUp,
    AgainstTheLast,
    AnyBetter,
    NotANumber,
    Absolute,
    Creeping,
    NewBest,
    NewBestAtReduction,
    SkipsNan,
    FromInfinity,
    OrEqual,
    Complement,
}

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    let first = 1.0 + random.below(0..8) as f64 / 8.0;
    // Two schedules, whose numbers differ from each other and from PyTorch's defaults (0.1, 10). No factor is the rate, or as far from 1 as
    // from 0: multiplying by the factor, subtracting that part and dividing by its inverse all differ.
    let patience = random.below(2..5);
    let creep = (6 + random.below(0..3)) as f64 * 1e-5;
    let factor = [0.2, 0.25, 0.3][random.below(0..3)];
    let one = cases((0.5, factor, patience), first, creep);
    let other = cases((0.08, 0.4 + factor, patience + 1), first, creep);
    let worsening =
        |patience: u64| (0.5, factor, patience, (0..=patience).map(|by| Some(first + 0.1 * by as f64)).collect());
    let mut cases: Vec<Case> = one.into_iter().chain(other).collect();
    // All patience is used, and no more; then, without patience, each epoch that is no better reduces the rate.
    cases.insert(1, worsening(7));
    cases.push((0.5, factor, 0, [0.0, 0.1, 0.05, -0.5, -0.4].map(|by| Some(first + by)).into()));
    let outputs = runner.call::<_, Vec<f64>>(1, &cases)?;
    let causes = causes(&FLAWS, |flaw| {
        cases.iter().enumerate().all(|(number, case)| close(&rates(case, *flaw), outputs.of(0, number), TOLERANCE))
    });
    cases.iter().enumerate().try_for_each(|(number, case)| check(case, outputs.of(0, number), &causes))
}

/// The losses of all cases for a schedule of this rate, factor and patience. The first loss of most is `first`; in one, the losses fall by the
/// part `creep` in each epoch.
fn cases((rate, factor, patience): (f64, f64, usize), first: f64, creep: f64) -> Vec<Case> {
    let worse = |times: usize| (1..=times).map(move |time| Some(first + 0.1 * time as f64));
    let mut losses: Vec<Vec<Option<f64>>> = vec![
        (0..8).map(|epoch| Some(first - 0.1 * f64::from(epoch))).collect(),
        [Some(first)].into_iter().chain(worse(2 * patience + 4)).collect(),
        // Improves twice before the patience runs out.
        [Some(first)].into_iter().chain(worse(patience)).chain([Some(first - 0.5)]).chain(worse(patience)).collect(),
        // Each loss is better than the one before, but none is better than the first, not even after a reduction.
        [Some(first)]
            .into_iter()
            .chain((0..2 * patience + 2).map(|time| Some(first + 1.0 - 0.1 * time as f64)))
            .collect(),
        // Improves by less than the threshold.
        (0..patience + 4).map(|time| Some(first * (1.0 - 1e-5 * time as f64))).collect(),
        // A NaN between losses that are not better: an answer that does not count it differs from one that takes it as better.
        [Some(first)].into_iter().chain(worse(1)).chain([None]).chain(worse(patience)).collect(),
        [Some(first)].into_iter().chain(vec![None; patience + 1]).chain([Some(first + 0.1)]).collect(),
    ];
    losses.push(vec![None, Some(first), Some(first - 0.1)]);
    // Small losses that fall by much more than the threshold, but by less than it in absolute numbers.
    losses.push((0..patience + 4).map(|time| Some(first * (0.01 - 5e-6 * time as f64))).collect());
    // Falls by less than the threshold in each epoch, and by more than it in two.
    losses.push((0..patience + 4).map(|time| Some(first * (1.0 - creep * time as f64))).collect());
    // Reaches 0 and stays there: a loss that equals the best one is no better. Only of 0 is any part exactly 0.
    losses.push([Some(first)].into_iter().chain(vec![Some(0.0); patience + 3]).collect());
    losses.into_iter().map(|losses| (rate, factor, patience as u64, losses)).collect()
}

const LATE: &str = "an epoch late: count the epoch first, and then compare";
const NEW_BEST: &str = "the best loss is forgotten at a reduction: then a later loss counts as better, although it is worse than the best. Only the \
                        count starts again";

const FLAWS: [(Flaw, &str); 16] = [
    (
        Flaw::Impatient,
        "an epoch early: `patience` epochs without improvement are allowed, and the next one reduces the rate, so compare with > and not \
         with >=",
    ),
    (Flaw::Patient, LATE),
    (Flaw::CountsAfter, LATE),
    (Flaw::NoNewCount, "reduced in every epoch once the patience has run out: reset the count after a reduction"),
    (Flaw::AddsUp, "all bad epochs are counted: count only those in a row, and let a better epoch reset the count"),
    (
        Flaw::AgainstTheLast,
        "compared with the previous epoch: compare with the best loss so far. A loss can be lower than the previous one and still not be an \
         improvement",
    ),
    (
        Flaw::AnyBetter,
        "any fall counts, however small: a better loss is less than best * (1 - THRESHOLD), or noise keeps the rate up forever",
    ),
    (
        Flaw::NotANumber,
        "NaN counts as better: every comparison with it is false, so test whether the loss is better, not whether it is worse",
    ),
    (Flaw::SkipsNan, "an epoch with a loss of NaN is not counted: count it as a bad one, since NaN is never better"),
    (
        Flaw::Absolute,
        "the threshold was subtracted as it is: it is a fraction of the best loss, so a better loss is less than best * (1 - THRESHOLD). \
         Small losses fall by less than 0.0001 and are better all the same",
    ),
    (
        Flaw::Creeping,
        "the best loss moved with a loss that was not better: only a loss that is less than best * (1 - THRESHOLD) becomes the best. \
         Otherwise many small falls never add up to a large one",
    ),
    (Flaw::NewBest, NEW_BEST),
    (Flaw::NewBestAtReduction, NEW_BEST),
    (
        Flaw::FromInfinity,
        "no loss is better, not even the first: a fall from infinity, divided by infinity, is NaN. Compare with best * (1 - THRESHOLD), which \
         is infinite as well",
    ),
    (
        Flaw::OrEqual,
        "a loss that equals best * (1 - THRESHOLD), as 0 does after 0, counts as better: a better loss is less than that",
    ),
    (
        Flaw::Complement,
        "the rate loses the part `factor` of itself: a reduction multiplies it by the factor, which is the part that is left",
    ),
];

fn check(case: &Case, observed: &[f64], causes: &[&str]) -> anyhow::Result<()> {
    let (rate, factor, patience, losses) = case;
    let right = rates(case, Flaw::None);
    let listed: Vec<String> =
        losses.iter().map(|loss| loss.map_or("NaN".into(), |loss| format!("{loss:.6}"))).collect();
    let first = right.iter().zip(observed).position(|(right, seen)| (right - seen).abs() > TOLERANCE).unwrap_or(0);
    Claim::close(&right, observed, TOLERANCE)
        .given(format!("rate {rate}, factor {factor}, patience {patience}, losses {}", listed.join(" ")))
        .causes(causes)
        .diagnose_if(
            observed.iter().any(|now| now > rate),
            "the rate rises: a reduction multiplies it by the factor, which is less than 1",
        )
        .or_fail(format!(
            "these are not the rates of ReduceLROnPlateau: the first difference is after epoch {first}, counted from 0"
        ))
}

/// The rate after each epoch.
fn rates((rate, factor, patience, losses): &Case, flaw: Flaw) -> Vec<f64> {
    let (mut rate, mut best, mut bad) = (*rate, f64::INFINITY, 0);
    let mut step = |loss: &Option<f64>| {
        let loss = loss.unwrap_or(f64::NAN);
        if flaw == Flaw::SkipsNan && loss.is_nan() {
            return rate;
        }
        let bound = match flaw {
            Flaw::AnyBetter => best,
            Flaw::Absolute => best - THRESHOLD,
            Flaw::FromInfinity => f64::NEG_INFINITY,
            _ => best * (1.0 - THRESHOLD),
        };
        let also = flaw == Flaw::NotANumber && loss.is_nan() || flaw == Flaw::OrEqual && loss == bound;
        let better = loss < bound || also;
        let late = bad > *patience && !better;
        if better {
            best = loss;
            bad = if flaw == Flaw::AddsUp { bad } else { 0 };
        } else {
            bad += 1;
        }
        if flaw == Flaw::AgainstTheLast || flaw == Flaw::Creeping && loss < best {
            best = loss;
        }
        let time = match flaw {
            Flaw::Impatient => bad >= *patience,
            Flaw::Patient | Flaw::CountsAfter => late,
            _ => bad > *patience,
        };
        if time {
            rate *= if flaw == Flaw::Complement { 1.0 - factor } else { *factor };
            best = match flaw {
                Flaw::NewBest => f64::INFINITY,
                Flaw::NewBestAtReduction => loss,
                _ => best,
            };
            bad = match flaw {
                Flaw::NoNewCount => bad,
                Flaw::CountsAfter => 1,
                _ => 0,
            };
        }
        rate
    };
    losses.iter().map(&mut step).collect()
}
