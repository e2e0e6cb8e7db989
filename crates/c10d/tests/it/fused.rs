//! The optimizer kernels on numbers that are exact in binary, and the arguments that they refuse. `lockstep` compares
//! their results over many steps with Python's.

use c10d::{AdamTensors, ErrorKind, FusedAdam, FusedSgd, fused_adam, fused_sgd};
use tch::{Device, Kind, Tensor};

const SGD: FusedSgd = FusedSgd {
    lr: 0.5,
    momentum: 0.0,
    dampening: 0.0,
    weight_decay: 0.0,
    nesterov: false,
    maximize: false,
    is_first_step: false,
};
const ADAM: FusedAdam = FusedAdam {
    lr: 0.25,
    betas: (0.5, 0.5),
    eps: 0.0,
    weight_decay: 0.0,
    decoupled: false,
    amsgrad: false,
    maximize: false,
};

fn full(n: i64, value: f64) -> Tensor {
    Tensor::full([n], value, (Kind::Float, Device::Cpu))
}

fn values(tensor: &Tensor) -> Vec<f64> {
    Vec::try_from(tensor.detach().to_kind(Kind::Double).flatten(0, -1)).unwrap()
}

fn adam_tensors(params: Vec<Tensor>, grad: f64) -> AdamTensors {
    let like = |value: f64| params.iter().map(|p| p.detach().full_like(value)).collect();
    AdamTensors {
        grads: like(grad),
        exp_avgs: like(0.0),
        exp_avg_sqs: like(0.0),
        max_exp_avg_sqs: Vec::new(),
        steps: params.iter().map(|_| Tensor::from(0.0_f32)).collect(),
        params,
    }
}

#[test]
fn sgd_steps_leaves_that_require_gradients() {
    let mut params = [full(3, 1.0).set_requires_grad(true), full(2, 4.0).set_requires_grad(true)];
    fused_sgd(&mut params, &[full(3, 2.0), full(2, -1.0)], &mut [], &SGD).unwrap();
    assert_eq!((values(&params[0]), values(&params[1])), (vec![0.0; 3], vec![4.5; 2]));
    assert!(params[0].is_leaf() && params[0].requires_grad());
}

#[test]
fn sgd_fills_the_momentum_buffer_in_the_first_step_and_keeps_a_fraction_later() {
    let (mut params, mut buffers) = ([full(2, 0.0)], [full(2, f64::NAN)]);
    let first = FusedSgd { momentum: 0.5, is_first_step: true, ..SGD };
    fused_sgd(&mut params, &[full(2, 2.0)], &mut buffers, &first).unwrap();
    assert_eq!((values(&params[0]), values(&buffers[0])), (vec![-1.0; 2], vec![2.0; 2]));
    fused_sgd(&mut params, &[full(2, 2.0)], &mut buffers, &FusedSgd { is_first_step: false, ..first }).unwrap();
    assert_eq!((values(&params[0]), values(&buffers[0])), (vec![-2.5; 2], vec![3.0; 2]));
}

#[test]
fn adam_moves_by_the_learning_rate_first_and_counts_the_step() {
    for (decoupled, expected) in [(false, 0.75), (true, 0.625)] {
        let mut tensors = adam_tensors(vec![full(2, 1.0), full(1, 1.0)], 2.0);
        fused_adam(&mut tensors, &FusedAdam { weight_decay: 0.5, decoupled, ..ADAM }).unwrap();
        assert!(tensors.params.iter().flat_map(values).all(|v| v == expected), "{:?}", tensors.params);
        assert!(tensors.steps.iter().flat_map(values).all(|v| v == 1.0));
    }
}

#[test]
fn amsgrad_fills_the_largest_averages() {
    let mut tensors = adam_tensors(vec![full(2, 1.0)], 2.0);
    tensors.max_exp_avg_sqs = vec![full(2, 0.0)];
    fused_adam(&mut tensors, &FusedAdam { amsgrad: true, ..ADAM }).unwrap();
    assert_eq!(values(&tensors.max_exp_avg_sqs[0]), [2.0; 2]);
}

#[test]
fn accepts_an_empty_list_of_parameters() {
    fused_sgd(&mut [], &[], &mut [], &SGD).unwrap();
    fused_adam(&mut AdamTensors::default(), &ADAM).unwrap();
}

#[test]
fn rejects_lists_of_other_lengths_naming_them() {
    let refused = |grads: &[Tensor], buffers: &mut [Tensor], momentum| {
        let error = fused_sgd(&mut [full(2, 0.0)], grads, buffers, &FusedSgd { momentum, ..SGD }).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadArgument);
        error.detail().to_owned()
    };
    assert_eq!(refused(&[], &mut [], 0.0), "0 gradients were given, 1 are needed");
    assert_eq!(refused(&[full(2, 0.0)], &mut [], 0.5), "0 momentum buffers were given, 1 are needed");
    assert_eq!(refused(&[full(2, 0.0)], &mut [full(2, 0.0)], 0.0), "1 momentum buffers were given, 0 are needed");
    type Spoil = fn(&mut AdamTensors);
    let cases: [(&str, Spoil); 5] = [
        ("gradients", |t| t.grads.clear()),
        ("averages", |t| t.exp_avgs.clear()),
        ("averages of squares", |t| t.exp_avg_sqs.clear()),
        ("largest averages of squares", |t| t.max_exp_avg_sqs.push(full(2, 0.0))),
        ("step counts", |t| t.steps.clear()),
    ];
    for (name, spoil) in cases {
        let mut tensors = adam_tensors(vec![full(2, 1.0)], 2.0);
        spoil(&mut tensors);
        let error = fused_adam(&mut tensors, &ADAM).unwrap_err();
        assert!(error.detail().contains(&format!(" {name} were given")), "{error}");
        assert_eq!(values(&tensors.params[0]), [1.0; 2], "{name}");
    }
}

#[test]
fn rejects_tensors_that_the_kernels_would_read_out_of_bounds_or_out_of_order() {
    let matrix = || full(6, 1.0).view([2, 3]);
    let grads: [(&str, Tensor); 4] = [
        ("shorter", full(3, 1.0)),
        ("another dtype", matrix().to_kind(Kind::Double)),
        ("another order", full(6, 1.0).view([3, 2]).tr()),
        ("repeated", full(1, 1.0).expand([2, 3], false)),
    ];
    for (name, grad) in grads {
        let mut params = [matrix()];
        let error = fused_sgd(&mut params, &[grad], &mut [], &SGD).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadArgument, "{name}: {error}");
        assert!(error.detail().contains("the gradient of parameter 0 is not laid out as it"), "{name}: {error}");
        assert_eq!(values(&params[0]), [1.0; 6], "{name}");
    }
    let repeated = full(1, 1.0).expand([2, 3], false);
    let error = fused_sgd(&mut [repeated.shallow_clone()], &[repeated], &mut [], &SGD).unwrap_err();
    assert!(error.detail().contains("gaps or overlaps"), "{error}");
}

#[test]
fn rejects_parameters_of_two_dtypes_and_step_counts_that_are_not_floats() {
    let mixed = vec![full(1, 1.0), full(1, 1.0).to_kind(Kind::Double)];
    let error = fused_adam(&mut adam_tensors(mixed, 1.0), &ADAM).unwrap_err();
    assert!(error.detail().contains("one dtype and device"), "{error}");
    let mut tensors = adam_tensors(vec![full(1, 1.0)], 1.0);
    tensors.steps = vec![Tensor::from(0_i64)];
    let error = fused_adam(&mut tensors, &ADAM).unwrap_err();
    assert!(error.detail().contains("the step count of parameter 0 is not one float"), "{error}");
}

#[test]
fn tensors_of_one_step_that_share_memory_are_refused() {
    let whole = full(6, 1.0);
    let mut params = [whole.narrow(0, 0, 4), whole.narrow(0, 2, 4)];
    let error = fused_sgd(&mut params, &[full(4, 1.0), full(4, 1.0)], &mut [], &SGD).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadArgument, "{error}");
    assert!(error.detail().contains("share memory"), "{error}");
    let error = fused_sgd(&mut [full(4, 1.0)], &[Tensor::new()], &mut [], &SGD).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadArgument, "{error}");
    assert_eq!(values(&whole), [1.0; 6], "nothing was written");
    // Gradients are only read.
    let grad = full(3, 1.0);
    fused_sgd(&mut [full(3, 0.0), full(3, 0.0)], &[grad.shallow_clone(), grad], &mut [], &SGD).unwrap();
}
