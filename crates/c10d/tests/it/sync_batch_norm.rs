//! Batch normalization over ranks in single precision, compared with double precision.

use crate::common::{on_each_backend, ranks};
use c10d::{ProcessGroup, sync_batch_norm};
use tch::{Device, Kind, Tensor};

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

/// Values that look random, with deviation 1 around 0; the same on every thread and machine.
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
