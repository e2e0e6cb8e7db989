//! Functions that the backward pass computes again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use c10d::{backward, checkpoint};
use tch::{Device, Kind, Tensor};

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
