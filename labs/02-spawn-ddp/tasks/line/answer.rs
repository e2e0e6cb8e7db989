//! Task 4: a line, from one process to many.
//!
//! Gradient descent fits a line to points. Each rank holds its share of the points, as in task 1. In every step, all ranks
//! together use the next `batch_size` points. Points stay on their rank. At the end, all ranks must have the line that one
//! process with all points finds: the number of ranks must not change the result.

use anyhow::Result;
use c10d::{ProcessGroup, ReduceOp};
use tch::{Device, Kind, Tensor};

/// Fits a line to the points (`x` and `y`, `Double [n]`, are this rank's share) in one pass over them: `[slope, intercept]`.
pub fn line(group: &ProcessGroup, x: &Tensor, y: &Tensor, batch_size: usize, rate: f64) -> Result<Tensor> {
    let mut line = Tensor::zeros([2], (Kind::Double, Device::Cpu));
    // <answer>
    //~ // This is the program for one process. What must change for several?
    //~ let batch = batch_size as i64;
    //~ for (x, y) in x.split(batch, 0).iter().zip(&y.split(batch, 0)) {
    //~     line -= gradient(&line, x, y) * rate;
    //~ }
    let ranks = group.size().get();
    let batch = (batch_size / ranks) as i64;
    for (x, y) in x.split(batch, 0).iter().zip(&y.split(batch, 0)) {
        let mut sum = gradient(&line, x, y);
        group.all_reduce(&mut sum, ReduceOp::Sum)?;
        line -= sum * (rate / ranks as f64);
    }
    // </answer>
    Ok(line)
}

/// The gradient of the mean squared error of a batch, with respect to slope and intercept.
pub fn gradient(line: &Tensor, x: &Tensor, y: &Tensor) -> Tensor {
    let error = x * line.get(0) + line.get(1) - y;
    Tensor::stack(&[(&error * x).mean(None), error.mean(None)], 0) * 2.0
}
