//! The optimizer kernels on numbers that are exact in binary, and the arguments that they refuse. `lockstep` compares
//! their results over many steps with Python's.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use c10d::{
    AdamTensors, Backend, ErrorKind, FusedAdam, FusedSgd, ProcessGroup, backward, checkpoint, fused_adam, fused_sgd,
    sync_batch_norm,
};
use lockstep_contract::background::{DESYNC_REPORT, GLOO};
use lockstep_process::watchdog::until;
use tch::{Device, Kind, Tensor};

use crate::common::{on_each_backend, options, ranks, ranks_on, refused};

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
    let message = |grads: &[Tensor], buffers: &mut [Tensor], momentum| {
        let error = refused(fused_sgd(&mut [full(2, 0.0)], grads, buffers, &FusedSgd { momentum, ..SGD }));
        error.detail().to_owned()
    };
    assert_eq!(message(&[], &mut [], 0.0), "0 gradients were given, 1 are needed");
    assert_eq!(message(&[full(2, 0.0)], &mut [], 0.5), "0 momentum buffers were given, 1 are needed");
    assert_eq!(message(&[full(2, 0.0)], &mut [full(2, 0.0)], 0.0), "1 momentum buffers were given, 0 are needed");
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
    let error = refused(fused_sgd(&mut params, &[full(4, 1.0), full(4, 1.0)], &mut [], &SGD));
    assert!(error.detail().contains("share memory"), "{error}");
    refused(fused_sgd(&mut [full(4, 1.0)], &[Tensor::new()], &mut [], &SGD));
    assert_eq!(values(&whole), [1.0; 6], "nothing was written");
    // Gradients are only read.
    let grad = full(3, 1.0);
    fused_sgd(&mut [full(3, 0.0), full(3, 0.0)], &[grad.shallow_clone(), grad], &mut [], &SGD).unwrap();
}

// Functions that the backward pass computes again.

const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);

fn leaf(seed: f64) -> Tensor {
    (Tensor::arange(12, FLOAT) * 0.1 + seed).sin().reshape([3, 4]).set_requires_grad(true)
}

fn layer(weight: &Tensor, x: &Tensor) -> Tensor {
    x.matmul(&weight.tr()).tanh().dropout(0.5, true)
}

/// The loss and both gradients, as bits, and a number drawn afterwards.
fn run(keep: bool, input_requires_grad: bool) -> (Vec<Tensor>, usize) {
    tch::manual_seed(7);
    let (input, weight) = (leaf(0.3).detach().set_requires_grad(input_requires_grad), leaf(0.7));
    let calls = Arc::new(AtomicUsize::new(0));
    let output = if keep {
        layer(&weight, &input)
    } else {
        let (weight, calls) = (weight.shallow_clone(), Arc::clone(&calls));
        checkpoint(&input, move |x| {
            calls.fetch_add(1, Ordering::Relaxed);
            layer(&weight, x)
        })
        .unwrap()
    };
    let between = Tensor::rand([2], FLOAT);
    let loss = (output.square() * 3.0).sum(Kind::Float);
    backward(&loss).unwrap();
    let drawn = Tensor::rand([2], FLOAT);
    let mut all = vec![loss.detach(), weight.grad(), between, drawn];
    all.extend(input_requires_grad.then(|| input.grad()));
    drop((output, loss));
    (all, calls.load(Ordering::Relaxed))
}

#[test]
fn gives_the_same_bits_and_draws_the_same_numbers_as_without() {
    for input_requires_grad in [true, false] {
        let (kept, _) = run(true, input_requires_grad);
        let (recomputed, calls) = run(false, input_requires_grad);
        assert_eq!(kept, recomputed);
        assert_eq!(calls, 2, "once forward and once backward");
    }
}

#[test]
fn checkpoints_nest_and_add_up() {
    // Whole numbers, whose sums are exact in any order.
    let leaf = |step: i64| {
        let numbers = (Tensor::arange(12, (Kind::Int64, Device::Cpu)) * step).remainder(5) - 2;
        numbers.to_kind(Kind::Float).reshape([3, 4]).set_requires_grad(true)
    };
    let weight = leaf(7);
    let square = |x: &Tensor, weight: &Tensor| x.matmul(&weight.tr()).matmul(weight);
    let input = leaf(3);
    square(&square(&input, &weight), &weight).sum(Kind::Float).backward();
    let expected = (input.grad().copy(), weight.grad().copy());

    let (again, shared) = (leaf(3), leaf(7));
    let outer = shared.shallow_clone();
    let output = checkpoint(&again, move |x| {
        let inner = outer.shallow_clone();
        let once = checkpoint(x, move |x| square(x, &inner)).unwrap();
        square(&once, &outer)
    });
    backward(&output.unwrap().sum(Kind::Float)).unwrap();
    assert_eq!((again.grad(), shared.grad()), expected);
}

#[test]
fn a_panic_inside_is_an_error_in_either_pass() {
    let error = checkpoint(&leaf(0.1), |_| panic!("no weights")).unwrap_err();
    assert!(error.to_string().contains("no weights"), "{error}");

    let calls = AtomicUsize::new(0);
    let output = checkpoint(&leaf(0.1), move |x| {
        assert_eq!(calls.fetch_add(1, Ordering::Relaxed), 0, "weights are gone");
        x * 2.0
    });
    let error = backward(&output.unwrap().sum(Kind::Float)).unwrap_err();
    assert!(error.to_string().contains("weights are gone"), "{error}");
}

#[test]
fn another_shape_in_the_backward_pass_is_an_error() {
    let calls = AtomicUsize::new(0);
    let output =
        checkpoint(
            &leaf(0.1),
            move |x| {
                if calls.fetch_add(1, Ordering::Relaxed) == 0 { x * 2.0 } else { x.sum(Kind::Float) }
            },
        );
    let error = backward(&output.unwrap().sum(Kind::Float)).unwrap_err();
    assert!(error.to_string().contains("returned a tensor of shape"), "{error}");
}

#[test]
fn the_closure_is_freed_with_the_graph() {
    let alive = Arc::new(());
    let held = Arc::clone(&alive);
    let output = checkpoint(&leaf(0.1), move |x| {
        let _held = &held;
        x * 2.0
    });
    assert_eq!(Arc::strong_count(&alive), 2);
    drop(output);
    assert_eq!(Arc::strong_count(&alive), 1);
}

// Batch normalization over ranks in single precision, compared with double precision.

/// The output, and the gradient of the input, of a function that weights every element of the output differently.
fn output_and_gradient(group: &ProcessGroup, input: &Tensor, weigh: &Tensor, kind: Kind) -> (Tensor, Tensor) {
    let input = input.to_kind(kind).copy().set_requires_grad(true);
    let parameter = |value: f64| Tensor::full([3], value, (kind, Device::Cpu)).set_requires_grad(true);
    let normalized = sync_batch_norm(group, &input, &parameter(1.5), &parameter(0.5), 1e-5).unwrap();
    c10d::backward(&(&normalized.output * weigh.to_kind(kind)).sum(kind)).unwrap();
    (normalized.output.detach().to_kind(Kind::Double), input.grad().to_kind(Kind::Double))
}

fn largest_difference(a: &Tensor, b: &Tensor) -> f64 {
    (a - b).abs().max().double_value(&[])
}

/// Values that look random, with mean 0 and standard deviation 1; the same on every thread and machine.
fn waves(step: f64) -> Tensor {
    let n = 16 * 3 * 8 * 8;
    ((Tensor::arange(n, (Kind::Double, Device::Cpu)) * step).sin() * std::f64::consts::SQRT_2).view([16, 3, 8, 8])
}

#[test]
fn a_mean_far_from_zero_causes_an_error_of_few_distances_between_neighbouring_inputs() {
    on_each_backend(|| {
        // Floats near 10,000 are about 0.001 apart. The output is factor * input + term, as in PyTorch: the mean, the
        // factor, the product and the term are each rounded by half of that, times the weight of 1.5.
        let spacing = f64::from(f32::EPSILON) * 8192.0;
        ranks(2, |group| {
            let input = (waves(1.7) + 1e4).to_kind(Kind::Float);
            let weigh = waves(2.3).to_kind(Kind::Float);
            let (output, gradient) = output_and_gradient(&group, &input, &weigh, Kind::Float);
            let (exact_output, exact_gradient) = output_and_gradient(&group, &input, &weigh, Kind::Double);
            let errors = [largest_difference(&output, &exact_output), largest_difference(&gradient, &exact_gradient)];
            println!("largest errors of output and gradient: {errors:?}");
            assert!(errors.iter().all(|&error| error < 4.0 * spacing), "{errors:?}");
        });
    });
}

// The background threads of a rank have their own names.

#[test]
fn background_threads_have_their_names() {
    let names = || -> Vec<String> {
        let threads = fs::read_dir("/proc/self/task").unwrap().flatten();
        threads.filter_map(|thread| fs::read_to_string(thread.path().join("comm")).ok()).collect()
    };
    ranks_on(Backend::Gloo, 2, &options(), |_group| {
        for name in [DESYNC_REPORT, GLOO] {
            // A thread that has not run yet has its parent's name.
            let is_there = || names().iter().any(|thread| thread.trim_end() == name);
            until(is_there).unwrap_or_else(|why| panic!("{name} in {:?}: {why}", names()));
        }
    });
}
