//! Autocast and the gradient scaler, against Python's PyTorch 2.11 on the CPU (`golden/amp.py`).

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::common::{bits, formula_tensor, ranks, values};
use lockstep::amp::{AmpError, GradScaler, GradScalerOptions, GradScalerState, autocast};
use lockstep::optim::{Optimizer, Sgd, SgdOptions};
use serde::Deserialize;
use tch::{Device, Kind, Tensor};

#[derive(Deserialize)]
struct Golden {
    kinds: BTreeMap<String, BTreeMap<String, String>>,
    scales: Vec<Run>,
    training: Training,
}

#[derive(Deserialize)]
struct Run {
    options: serde_json::Map<String, serde_json::Value>,
    steps: String,
    /// Scale, count of good steps, and the two weights.
    after: Vec<[f64; 4]>,
}

#[derive(Deserialize)]
struct Training {
    losses: Vec<f64>,
    scales: Vec<f32>,
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("../../golden/amp.json")).unwrap()
}

fn kind(name: &str) -> Kind {
    match name {
        "float32" => Kind::Float,
        "float16" => Kind::Half,
        "bfloat16" => Kind::BFloat16,
        other => panic!("{other}"),
    }
}

fn sgd(params: &[Tensor], lr: f64, momentum: f64) -> Sgd {
    let named = params.iter().enumerate().map(|(at, param)| (format!("w{at}"), param.shallow_clone()));
    Sgd::new(named.collect(), SgdOptions { lr, momentum, ..Default::default() }).unwrap()
}

#[test]
fn operations_have_the_types_that_they_have_in_python() {
    let x = (Tensor::arange(16, (Kind::Float, Device::Cpu)) / 16).reshape([4, 4]);
    let y = Tensor::ones([4, 4], (Kind::Float, Device::Cpu));
    let product = || x.matmul(&y);
    let of = |name: &str| match name {
        "matmul" => product(),
        "linear" => x.linear::<Tensor>(&y, None),
        "add" => &x + &y,
        "relu of matmul" => product().relu(),
        "softmax of matmul" => product().softmax(1, None),
        "mse_loss of matmul" => product().mse_loss(&y, tch::Reduction::Mean),
        "cross_entropy of matmul" => product().cross_entropy_for_logits(&Tensor::from_slice(&[0_i64, 1, 2, 3])),
        "layer_norm of matmul" => product().layer_norm::<Tensor>([4], None, None, 1e-5, false),
        "conv2d" => {
            let filter = y.narrow(0, 0, 2).narrow(1, 0, 2).reshape([1, 1, 2, 2]);
            x.reshape([1, 1, 4, 4]).conv2d::<Tensor>(&filter, None, 1, 0, 1, 1)
        }
        other => panic!("{other}"),
    };
    for (name, kinds) in golden().kinds {
        assert_eq!(of(&name).kind(), Kind::Float, "{name} without autocast");
        for (within, expected) in kinds {
            let result = autocast(Device::Cpu, kind(&within), true, || of(&name)).unwrap();
            assert_eq!(result.kind(), kind(&expected), "{name} under autocast with {within}");
        }
    }
}

#[test]
fn autocast_ends_with_its_body() {
    let x = Tensor::ones([2, 2], (Kind::Float, Device::Cpu));
    let product = || x.matmul(&x).kind();
    let nested = || {
        let without = autocast(Device::Cpu, Kind::BFloat16, false, product).unwrap();
        let other = autocast(Device::Cpu, Kind::Half, true, product).unwrap();
        [without, other, product()]
    };
    let kinds = autocast(Device::Cpu, Kind::BFloat16, true, nested).unwrap();
    assert_eq!(kinds, [Kind::Float, Kind::Half, Kind::BFloat16]);
    let panics = || autocast(Device::Cpu, Kind::BFloat16, true, || panic!("on purpose"));
    assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
    assert_eq!(product(), Kind::Float, "after a panic");
    let elsewhere = autocast(Device::Cpu, Kind::BFloat16, true, || {
        std::thread::spawn(|| {
            Tensor::ones([2, 2], (Kind::Float, Device::Cpu))
                .mm(&Tensor::ones([2, 2], (Kind::Float, Device::Cpu)))
                .kind()
        })
        .join()
    });
    assert_eq!(elsewhere.unwrap().unwrap(), Kind::Float, "on another thread");
}

#[test]
fn autocast_copies_a_weight_again_after_a_step() {
    let weight = Tensor::ones([2, 2], (Kind::Float, Device::Cpu)).set_requires_grad(true);
    let x = Tensor::ones([1, 2], (Kind::Float, Device::Cpu));
    let product =
        || autocast(Device::Cpu, Kind::BFloat16, true, || values(&x.matmul(&weight).detach().to_kind(Kind::Float)));
    assert_eq!(product().unwrap(), [2.0, 2.0]);
    let _ = tch::no_grad(|| weight.shallow_clone().g_add_scalar_(1.0));
    assert_eq!(product().unwrap(), [4.0, 4.0]);
}

#[test]
fn a_checkpointed_function_is_computed_again_under_the_same_autocast() {
    let grads = |again: bool| {
        let [x, weight] = [1, 2].map(|salt| formula_tensor(&[8, 8], salt, 1.0).set_requires_grad(true));
        let held = weight.shallow_clone();
        let product = move |x: &Tensor| x.matmul(&held).relu().matmul(&held);
        let forward = || if again { c10d::checkpoint(&x, product).unwrap() } else { product(&x) };
        let output = autocast(Device::Cpu, Kind::BFloat16, true, forward).unwrap();
        assert_eq!(output.kind(), Kind::BFloat16);
        output.to_kind(Kind::Float).sum(Kind::Float).backward();
        [bits(&x.grad()), bits(&weight.grad())]
    };
    assert_eq!(grads(true), grads(false));
}

#[test]
fn autocast_refuses_other_types_and_devices() {
    for (device, kind, named) in [(Device::Cpu, Kind::Double, "Double"), (Device::Mps, Kind::Half, "Mps")] {
        let error = autocast(device, kind, true, || ()).unwrap_err();
        assert!(error.to_string().contains(named), "{error}");
    }
}

#[test]
fn scales_and_weights_are_those_of_python() {
    for Run { options: given, steps, after } in golden().scales {
        let mut options = serde_json::to_value(GradScalerOptions::default()).unwrap();
        options.as_object_mut().unwrap().extend(given);
        let mut scaler = GradScaler::new(serde_json::from_value(options.clone()).unwrap()).unwrap();
        let weight = Tensor::from_slice(&[1.0_f32, -2.0]).set_requires_grad(true);
        let mut optimizer = sgd(&[weight.shallow_clone()], 0.5, 0.0);
        for (at, (step, expected)) in steps.chars().zip(after).enumerate() {
            optimizer.zero_grad();
            let slope = match step {
                'g' => 0.125,
                'i' => f64::INFINITY,
                _ => f64::NAN,
            };
            let loss = (&weight * slope).sum(Kind::Float);
            scaler.scale(&loss).unwrap().backward();
            assert_eq!(scaler.step(&mut optimizer).unwrap(), step == 'g', "{options} {at}");
            scaler.update().unwrap();
            let weights = values(&weight.detach());
            let found = [scaler.get_scale().into(), scaler.state_dict().growth_tracker.into(), weights[0], weights[1]];
            assert_eq!(found, expected, "{options} {at}");
        }
    }
}

#[test]
fn training_in_half_has_the_losses_of_python_golden() {
    let Training { losses, scales } = golden().training;
    let element = |shape: [i64; 2]| {
        let count = shape[0] * shape[1];
        ((Tensor::arange(count, (Kind::Float, Device::Cpu)) * 7).remainder(11) - 5).reshape(shape) / 8
    };
    let weights = [[16, 8], [4, 16]].map(|shape| element(shape).set_requires_grad(true));
    let (inputs, targets) = (element([32, 8]), Tensor::arange(32, (Kind::Int64, Device::Cpu)).remainder(4));
    let mut optimizer = sgd(&weights, 0.1, 0.9);
    let options = GradScalerOptions { init_scale: (1 << 24) as f32, growth_interval: 4, ..Default::default() };
    let mut scaler = GradScaler::new(options).unwrap();
    for (at, (expected, scale)) in losses.iter().zip(scales).enumerate() {
        optimizer.zero_grad();
        let forward = || {
            let hidden = inputs.linear::<Tensor>(&weights[0], None).relu();
            hidden.linear::<Tensor>(&weights[1], None).cross_entropy_for_logits(&targets)
        };
        let loss = autocast(Device::Cpu, Kind::Half, true, forward).unwrap();
        scaler.scale(&loss).unwrap().backward();
        scaler.step(&mut optimizer).unwrap();
        scaler.update().unwrap();
        let found = loss.double_value(&[]);
        assert!((found - expected).abs() < 5e-3, "step {at}: {found}, in Python {expected}");
        assert_eq!(scaler.get_scale(), scale, "after step {at}");
    }
}

#[test]
fn a_restored_scaler_goes_on_as_if_it_had_not_stopped() {
    let options = GradScalerOptions { growth_interval: 3, ..Default::default() };
    let steps = |scaler: &mut GradScaler, weight: &Tensor, slopes: &[f64]| {
        let mut optimizer = sgd(&[weight.shallow_clone()], 0.5, 0.0);
        for slope in slopes {
            optimizer.zero_grad();
            scaler.scale(&(weight * *slope).sum(Kind::Float)).unwrap().backward();
            scaler.step(&mut optimizer).unwrap();
            scaler.update().unwrap();
        }
    };
    let slopes = [1.0, 1.0, f64::NAN, 1.0, 1.0, 1.0, 1.0];
    let whole = Tensor::from(1.0_f32).set_requires_grad(true);
    let mut undisturbed = GradScaler::new(options).unwrap();
    steps(&mut undisturbed, &whole, &slopes);
    let halves = Tensor::from(1.0_f32).set_requires_grad(true);
    let mut first = GradScaler::new(options).unwrap();
    steps(&mut first, &halves, &slopes[..5]);
    let saved = serde_json::to_string(&first.state_dict()).unwrap();
    let mut second = GradScaler::new(GradScalerOptions::default()).unwrap();
    second.load_state_dict(serde_json::from_str(&saved).unwrap()).unwrap();
    steps(&mut second, &halves, &slopes[5..]);
    assert_eq!(second.state_dict(), undisturbed.state_dict());
    assert_eq!(values(&halves.detach()), values(&whole.detach()));
}

#[test]
fn gradients_can_be_clipped_between_unscale_and_step() {
    let weight = Tensor::from(1.0_f32).set_requires_grad(true);
    let mut optimizer = sgd(&[weight.shallow_clone()], 1.0, 0.0);
    let mut scaler = GradScaler::new(GradScalerOptions::default()).unwrap();
    scaler.scale(&(&weight * 8.0)).unwrap().backward();
    scaler.unscale(&optimizer).unwrap();
    assert_eq!(values(&weight.grad()), [8.0]);
    let _ = weight.grad().clamp_(-0.5, 0.5);
    assert!(scaler.step(&mut optimizer).unwrap());
    assert_eq!(values(&weight.detach()), [0.5]);
}

#[test]
fn calls_in_another_order_and_bad_options_are_refused() {
    let weight = Tensor::from(1.0_f32).set_requires_grad(true);
    let mut optimizer = sgd(&[weight.shallow_clone()], 1.0, 0.0);
    let mut scaler = GradScaler::new(GradScalerOptions::default()).unwrap();
    assert!(matches!(scaler.update(), Err(AmpError::Order { called: "update", .. })));
    assert!(matches!(scaler.step(&mut optimizer), Err(AmpError::NoGradients)));
    scaler.scale(&(&weight * 1.0)).unwrap().backward();
    scaler.unscale(&optimizer).unwrap();
    assert!(matches!(scaler.unscale(&optimizer), Err(AmpError::Order { called: "unscale", .. })));
    scaler.step(&mut optimizer).unwrap();
    assert!(matches!(scaler.step(&mut optimizer), Err(AmpError::Order { called: "step", .. })));
    assert!(matches!(scaler.unscale(&optimizer), Err(AmpError::Order { called: "unscale", .. })));
    scaler.update().unwrap();

    let half = Tensor::from(1.0_f32).to_kind(Kind::Half).detach().set_requires_grad(true);
    let mut optimizer = sgd(&[half.shallow_clone()], 1.0, 0.0);
    (&half * 1.0).backward();
    assert!(matches!(scaler.step(&mut optimizer), Err(AmpError::Half { name }) if name == "w0"));

    let default = GradScalerOptions::default();
    for (options, named) in [
        (GradScalerOptions { init_scale: f32::INFINITY, ..default }, "init_scale"),
        (GradScalerOptions { growth_factor: 1.0, ..default }, "growth_factor"),
        (GradScalerOptions { backoff_factor: 1.0, ..default }, "backoff_factor"),
        (GradScalerOptions { growth_interval: 0, ..default }, "growth_interval"),
    ] {
        assert!(matches!(GradScaler::new(options), Err(AmpError::Option { option, .. }) if option == named));
        let state = GradScalerState { scale: options.init_scale, growth_tracker: 0, options };
        assert!(scaler.load_state_dict(state).is_err());
    }
}

#[test]
fn ranks_with_gradients_of_their_own_leave_a_step_out_together() {
    let stepped = ranks(3, |group| {
        let weight = formula_tensor(&[2], 1, 0.5).set_requires_grad(true);
        let mut optimizer = sgd(&[weight.shallow_clone()], 0.5, 0.0);
        let mut scaler = GradScaler::new(GradScalerOptions::default()).unwrap().across(group.clone());
        let mut took = |slope: f64| {
            optimizer.zero_grad();
            scaler.scale(&(&weight * slope).sum(Kind::Float)).unwrap().backward();
            let took = scaler.step(&mut optimizer).unwrap();
            scaler.update().unwrap();
            (took, scaler.get_scale())
        };
        let bad = if group.rank().get() == 1 { f64::INFINITY } else { 1.0 };
        [took(1.0), took(bad)]
    });
    assert_eq!(stepped, vec![[(true, 65_536.0), (false, 32_768.0)]; 3]);
}
