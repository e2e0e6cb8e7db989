//! Sorted, but by the values, which every rank has of its own.

use std::collections::HashMap;

use anyhow::Result;
use c10d::{ProcessGroup, ReduceOp};
use tch::Tensor;

pub fn same_order(group: &ProcessGroup, own: &HashMap<String, f64>) -> Result<HashMap<String, f64>> {
    let ranks = group.size().get() as f64;
    let mut sorted: Vec<_> = own.iter().collect();
    sorted.sort_by(|one, other| one.1.total_cmp(other.1));
    let mut means = HashMap::new();
    for (name, value) in sorted {
        let mut sum = Tensor::from_slice(&[*value]);
        group.all_reduce(&mut sum, ReduceOp::Sum)?;
        means.insert(name.clone(), sum.double_value(&[0]) / ranks);
    }
    Ok(means)
}
