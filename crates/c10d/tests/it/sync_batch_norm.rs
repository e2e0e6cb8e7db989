//! Batch normalization over ranks in single precision, against the same in double precision.

use crate::common::ranks;
use c10d::{ProcessGroup, sync_batch_norm};
use tch::{Device, Kind, Tensor};

/// Output and gradient of the input, of a function that weighs every element of the output differently.
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

#[test]
fn a_mean_far_from_zero_costs_no_more_than_the_distance_of_neighbouring_inputs() {
    // Floats around 10,000 lie about 0.001 apart, of which the deviation of 1 is taken: half of that is lost where the mean is rounded.
    let spacing = f64::from(f32::EPSILON) * 8192.0;
    ranks(2, |group| {
        tch::manual_seed(7);
        let input = Tensor::randn([16, 3, 8, 8], (Kind::Float, Device::Cpu)) + 1e4;
        let weigh = Tensor::randn([16, 3, 8, 8], (Kind::Float, Device::Cpu));
        let (output, gradient) = output_and_gradient(&group, &input, &weigh, Kind::Float);
        let (exact_output, exact_gradient) = output_and_gradient(&group, &input, &weigh, Kind::Double);
        let errors = [largest_difference(&output, &exact_output), largest_difference(&gradient, &exact_gradient)];
        println!("largest errors of output and gradient: {errors:?}");
        assert!(errors.iter().all(|&error| error < spacing), "{errors:?}");
    });
}
