//! Task `plateau`: rates after each of several epochs, against the rule of `ReduceLROnPlateau` (`torch/optim/lr_scheduler.py`).

use lockstep_grading::{Claim, Stage};

/// Rate, factor, patience, losses; none is one that is not a number.
type Case = (f64, f64, u64, Vec<Option<f64>>);

const THRESHOLD: f64 = 1e-4;

/// What people get wrong.
#[derive(Clone, Copy, PartialEq)]
enum Flaw {
    None,
    Impatient,
    Patient,
    NoNewCount,
    AddsUp,
    AgainstTheLast,
    AnyBetter,
    NotANumber,
}

pub(crate) fn grade(stage: &mut Stage) -> anyhow::Result<()> {
    let mut random = stage.random();
    let (rate, factor) = (0.5, [0.1, 0.5][random.below(0..2)]);
    let patience = random.below(2..5);
    let first = 1.0 + random.below(0..8) as f64 / 8.0;
    let worse = |times: usize| (1..=times).map(move |time| Some(first + 0.1 * time as f64));
    let mut losses: Vec<Vec<Option<f64>>> = vec![
        (0..8).map(|epoch| Some(first - 0.1 * f64::from(epoch))).collect(),
        [Some(first)].into_iter().chain(worse(2 * patience + 4)).collect(),
        // Better before patience is at its end, twice.
        [Some(first)].into_iter().chain(worse(patience)).chain([Some(first - 0.5)]).chain(worse(patience)).collect(),
        // Each better than the one before, none better than the first.
        [Some(first)].into_iter().chain((0..patience + 3).map(|time| Some(first + 1.0 - 0.1 * time as f64))).collect(),
        // Better by next to nothing.
        (0..patience + 4).map(|time| Some(first * (1.0 - 1e-5 * time as f64))).collect(),
        [Some(first)].into_iter().chain(vec![None; patience + 1]).chain([Some(first + 0.1)]).collect(),
    ];
    losses.push(vec![None, Some(first), Some(first - 0.1)]);
    let cases: Vec<Case> = losses.into_iter().map(|losses| (rate, factor, patience as u64, losses)).collect();
    let outputs = stage.call::<_, Vec<f64>>(1, &cases)?;
    cases.iter().enumerate().try_for_each(|(number, case)| judge(case, outputs.of(0, number)))
}

fn judge(case: &Case, observed: &[f64]) -> anyhow::Result<()> {
    let (rate, factor, patience, losses) = case;
    let is = |flaw| lockstep_grading::close(&rates(case, flaw), observed, 1e-12);
    let told: Vec<String> = losses.iter().map(|loss| loss.map_or("NaN".into(), |loss| format!("{loss:.5}"))).collect();
    Claim::close(&rates(case, Flaw::None), observed, 1e-12)
        .given(format!("rate {rate}, factor {factor}, patience {patience}, losses {}", told.join(" ")))
        .knows(
            is(Flaw::Impatient),
            format!(
                "an epoch early: {patience} epochs may be no better, and the next one reduces the rate, so compare with > and not with >="
            ),
        )
        .knows(is(Flaw::Patient), "an epoch late: count the epoch first, and compare then")
        .knows(
            is(Flaw::NoNewCount),
            "reduced in every epoch once patience is at its end: the count begins anew after a reduction",
        )
        .knows(is(Flaw::AddsUp), "all bad epochs are counted: only those in a row matter, a better one sets the count to 0")
        .knows(
            is(Flaw::AgainstTheLast),
            "compared with the epoch before: a loss that falls from a worse one is no news, compare with the best so far",
        )
        .knows(
            is(Flaw::AnyBetter),
            "any fall counts, however small: better is less than best * (1 - THRESHOLD), or noise keeps the rate up for ever",
        )
        .knows(
            is(Flaw::NotANumber),
            "NaN was taken for better: every comparison with it is false, so ask whether the loss is better, not whether it is worse",
        )
        .otherwise("not the rates of ReduceLROnPlateau")
}

/// The rate after each epoch.
fn rates((rate, factor, patience, losses): &Case, flaw: Flaw) -> Vec<f64> {
    let (mut rate, mut best, mut bad) = (*rate, f64::INFINITY, 0);
    let mut step = |loss: &Option<f64>| {
        let loss = loss.unwrap_or(f64::NAN);
        let bound = if flaw == Flaw::AnyBetter { best } else { best * (1.0 - THRESHOLD) };
        let late = bad > *patience;
        if loss < bound || flaw == Flaw::NotANumber && loss.is_nan() {
            best = loss;
            bad = if flaw == Flaw::AddsUp { bad } else { 0 };
        } else {
            bad += 1;
        }
        if flaw == Flaw::AgainstTheLast {
            best = loss;
        }
        let time = match flaw {
            Flaw::Impatient => bad >= *patience,
            Flaw::Patient => late,
            _ => bad > *patience,
        };
        if time {
            rate *= factor;
            bad = if flaw == Flaw::NoNewCount { bad } else { 0 };
        }
        rate
    };
    losses.iter().map(&mut step).collect()
}
