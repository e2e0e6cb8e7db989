//! Learning-rate schedules against PyTorch 2.11's, bit for bit.
//!
//! The values are in `golden/schedule.json`, made by `scripts/golden/schedule.py`, which documents each field.

use lockstep::optim::schedule::{PlateauOptions, ReduceLrOnPlateau, Warmup};
use lockstep::optim::{Optimizer, ParamGroup, Sgd, SgdOptions};
use serde::Deserialize;
use tch::{Tensor, kind::FLOAT_CPU};

#[derive(Deserialize)]
struct Golden {
    plateau: Vec<PlateauRun>,
    warmup: Vec<WarmupRun>,
}

#[derive(Deserialize)]
struct PlateauRun {
    name: String,
    options: PlateauOptions,
    metrics: Vec<Number>,
    after: Vec<(f64, f64, Number, u64, u64)>,
}

#[derive(Deserialize)]
struct WarmupRun {
    lr: f64,
    start_factor: f64,
    steps: u64,
    closed: Vec<f64>,
    chained: Vec<f64>,
}

/// A float, or "nan", "inf", "-inf".
#[derive(Clone, Deserialize)]
#[serde(untagged)]
enum Number {
    Finite(f64),
    Text(String),
}

impl Number {
    fn value(&self) -> f64 {
        match self {
            Number::Finite(value) => *value,
            Number::Text(text) => text.parse().unwrap(),
        }
    }
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("../../golden/schedule.json")).unwrap()
}

/// The rate of one parameter in each group.
fn optimizer(rates: &[f64]) -> Sgd {
    let group = |(at, lr): (usize, &f64)| {
        let parameter = Tensor::zeros([1], FLOAT_CPU).set_requires_grad(true);
        ParamGroup::new(vec![(format!("p{at}"), parameter)]).lr(*lr)
    };
    Sgd::with_groups(rates.iter().enumerate().map(group).collect(), SgdOptions::default()).unwrap()
}

#[test]
fn reduces_on_plateaus_as_pytorch_does() {
    let runs = golden().plateau;
    assert!(runs.len() >= 20);
    for PlateauRun { name, options, metrics, after } in runs {
        let (mut optimizer, mut schedule) = (optimizer(&[0.1, 0.01]), ReduceLrOnPlateau::new(options).unwrap());
        assert_eq!(metrics.len(), after.len());
        for (at, (metric, (first, second, best, bad, cooldown))) in metrics.iter().zip(after).enumerate() {
            let before = optimizer.group_lrs();
            let reduced = schedule.step(metric.value(), &mut optimizer).unwrap();
            let (state, lrs) = (schedule.state(), optimizer.group_lrs());
            assert_eq!(lrs, [first, second], "{name}, metric {at}");
            assert_eq!((state.num_bad_epochs, state.cooldown_counter), (bad, cooldown), "{name}, metric {at}");
            assert_eq!(state.best.to_bits(), best.value().to_bits(), "{name}, metric {at}");
            let reductions: Vec<_> = reduced.iter().map(|one| (one.group, one.from, one.to)).collect();
            let changed: Vec<_> = (0..2).filter(|&group| before[group] != lrs[group]).collect();
            assert_eq!(reductions, changed.iter().map(|&group| (group, before[group], lrs[group])).collect::<Vec<_>>());
        }
    }
}

#[test]
fn goes_on_from_a_saved_state_as_if_nothing_had_happened() {
    for PlateauRun { name, options, metrics, after } in golden().plateau {
        let (mut optimizer, mut schedule) = (optimizer(&[0.1, 0.01]), ReduceLrOnPlateau::new(options.clone()).unwrap());
        for metric in metrics {
            let saved = serde_json::to_string(&schedule.state()).unwrap();
            schedule = ReduceLrOnPlateau::new(options.clone()).unwrap();
            schedule.load_state(serde_json::from_str(&saved).unwrap()).unwrap();
            schedule.step(metric.value(), &mut optimizer).unwrap();
        }
        let (first, second, ..) = after.last().unwrap();
        assert_eq!(optimizer.group_lrs(), [*first, *second], "{name}");
    }
}

#[test]
fn warms_up_as_pytorch_does() {
    for WarmupRun { lr, start_factor, steps, closed, chained } in golden().warmup {
        let (warmup, mut optimizer) = (Warmup::new(lr, start_factor, steps).unwrap(), optimizer(&[1.0, 2.0]));
        for (step, (closed, chained)) in closed.into_iter().zip(chained).enumerate() {
            warmup.apply(step as u64, &mut optimizer);
            let rates = optimizer.group_lrs();
            assert_eq!(rates, [closed, closed], "step {step} of {lr} from {start_factor} in {steps}");
            assert!((rates[0] - chained).abs() <= 1e-14 * chained.abs().max(1.0), "step {step}: {rates:?} {chained}");
        }
    }
}
