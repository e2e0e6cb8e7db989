//! Grades `speed_up`: times of runs with a drawn serial share, from one rank on and from more.

use lockstep_grading::{Claim, Runner, counted};
use serde::Deserialize;

/// Noise of 0.2 % moves the serial share by less than a hundredth.
const NOISE: f64 = 0.002;
const SERIAL: f64 = 0.02;
const RELATIVE: f64 = 0.05;

#[derive(Clone, Copy, Debug, Deserialize)]
struct SpeedUp {
    serial: Option<f64>,
    efficiency: Option<f64>,
    amdahl: Option<f64>,
    gustafson: Option<f64>,
}

/// A run, and a number of ranks that was not measured.
struct SpeedUpCase {
    times: Vec<(usize, f64)>,
    /// Of one rank, drawn without noise.
    one: f64,
    serial: f64,
    ranks: usize,
}

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    let cases: Vec<SpeedUpCase> = [(1, 0.05), (1, 0.15), (4, 0.08)]
        .into_iter()
        .map(|(first, least)| {
            let mut part = |most: f64| most * random.below(0..1001) as f64 / 1000.0;
            let (serial, one) = (least + part(0.1), 20.0 + part(400.0));
            let time = |ranks: usize| one * (serial + (1.0 - serial) / ranks as f64);
            let mut noisy = |ranks: usize| (ranks, time(ranks) * (1.0 - NOISE + part(2.0 * NOISE)));
            SpeedUpCase {
                times: [1, 2, 4, 8].map(|times| noisy(first * times)).into(),
                one,
                serial,
                ranks: first << (4 + (part(4.0) as u32)),
            }
        })
        .collect();
    let inputs: Vec<(&Vec<(usize, f64)>, usize)> = cases.iter().map(|case| (&case.times, case.ranks)).collect();
    let outputs = runner.call::<_, SpeedUp>(1, &inputs)?;
    let all: Vec<(&SpeedUpCase, &SpeedUp)> =
        cases.iter().enumerate().map(|(number, case)| (case, outputs.of(0, number))).collect();
    all.iter().try_for_each(|(case, found)| check(case, found, &all))
}

impl SpeedUpCase {
    /// On the most ranks that were measured, if one rank takes this long.
    fn efficiency(&self, one: f64) -> f64 {
        let (most, time) = self.times[self.times.len() - 1];
        one / time / most as f64
    }
}

/// `all` are all cases, and what was found for them.
fn check(case: &SpeedUpCase, found: &SpeedUp, all: &[(&SpeedUpCase, &SpeedUp)]) -> anyhow::Result<()> {
    let times: Vec<String> =
        case.times.iter().map(|(ranks, time)| format!("{}: {time:.2} s", counted(*ranks, "rank"))).collect();
    let given = format!("{}; predict {}", times.join(", "), counted(case.ranks, "rank"));
    let number = |number: Option<f64>| number.unwrap_or(f64::NAN);
    let serial = number(found.serial);
    let most = case.times[case.times.len() - 1].0;
    let efficiency = case.efficiency(case.one);
    let is = |found: f64, right: f64| (found / right - 1.0).abs() <= RELATIVE;
    let serial_is =
        |wrong: fn(&SpeedUpCase) -> f64| all.iter().all(|(case, found)| is(number(found.serial), wrong(case)));
    let efficiency_is =
        |wrong: fn(&SpeedUpCase) -> f64| all.iter().all(|(case, found)| is(number(found.efficiency), wrong(case)));
    Claim::that(
        (serial - case.serial).abs() <= SERIAL,
        format!("serial share {:.3}, within {SERIAL}", case.serial),
        format!("{serial:.3}"),
    )
    .given(&given)
    .cause_if(
        serial_is(|case| 1.0 - case.efficiency(case.one)),
        "that is the difference between the efficiency and 1, which grows with the number of ranks: the serial share is a property of the \
         work alone",
    )
    .cause_if(
        serial_is(|case| case.serial * case.one),
        "that is A, the seconds that more ranks do not shorten: the share is A / (A + B), since one rank takes A + B",
    )
    .diagnose_if(
        case.times[0].0 > 1,
        "is the time of the smallest run taken for that of one rank? It has several: one rank takes A + B, even if that could not be \
         measured",
    )
    .or_fail("this is not A / (A + B) of the line through the times")?;
    let observed = number(found.efficiency);
    Claim::that(
        is(observed, efficiency),
        format!("efficiency {efficiency:.3} on {}", counted(most, "rank")),
        format!("{observed:.3}"),
    )
    .given(&given)
    .cause_if(
        efficiency_is(|case| case.one / case.times[case.times.len() - 1].1),
        "that is the speed-up: the efficiency is the speed-up divided by the number of ranks",
    )
    .cause_if(
        efficiency_is(|case| case.efficiency(case.times[0].1)),
        "that compares with the smallest run, which had several ranks: compare with one rank, A + B",
    )
    .or_fail("this is not the time of one rank, divided by that of the most ranks and by their number")?;
    check_laws(case, &given, serial, found)
}

/// With the learner's own serial share, whose error both laws would amplify.
fn check_laws(case: &SpeedUpCase, given: &str, serial: f64, found: &SpeedUp) -> anyhow::Result<()> {
    let ranks = case.ranks as f64;
    let (amdahl, gustafson) = (1.0 / (serial + (1.0 - serial) / ranks), serial + (1.0 - serial) * ranks);
    let (law, other) = (found.amdahl.unwrap_or(f64::NAN), found.gustafson.unwrap_or(f64::NAN));
    let is = |found: f64, right: f64| (found / right - 1.0).abs() <= 1e-6;
    let kept = found.efficiency.unwrap_or(f64::NAN) * ranks;
    Claim::that(is(law, amdahl), format!("Amdahl: {amdahl:.3}"), format!("{law:.3}"))
        .given(given)
        .diagnose_if(is(law, gustafson), "the laws are swapped: with the same work, the speed-up cannot exceed 1 / serial")
        .diagnose_if(
            is(law, kept),
            "that assumes the efficiency of the measured runs, which falls with each further rank: the serial share stays as it is",
        )
        .or_fail("one rank takes 1, n ranks take the serial share and an n-th of the rest")?;
    Claim::that(is(other, gustafson), format!("Gustafson: {gustafson:.3}"), format!("{other:.3}")).given(given).or_fail(
        "with n times the work to share, one rank would take the serial share and n times the rest, where n ranks take 1",
    )
}
