//! Other answers to `same_order`: wrong ones, and right ones that look unusual.

use std::collections::HashMap;

use anyhow::Result;
use c10d::{ProcessGroup, Rank, ReduceOp};
use tch::Tensor;

/// As it is given: a hash map has an order of its own in every process.
pub fn as_it_comes(group: &ProcessGroup, own: &HashMap<String, f64>) -> Result<HashMap<String, f64>> {
    let ranks = group.size().get() as f64;
    let mut means = HashMap::new();
    for (name, value) in own {
        let mut sum = Tensor::from_slice(&[*value]);
        group.all_reduce(&mut sum, ReduceOp::Sum)?;
        means.insert(name.clone(), sum.double_value(&[0]) / ranks);
    }
    Ok(means)
}

/// Sorted, but by the values, which every rank has of its own.
pub fn by_value(group: &ProcessGroup, own: &HashMap<String, f64>) -> Result<HashMap<String, f64>> {
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

/// Right: all take the order of rank 0, which tells the others in the store.
pub fn rank_0s(group: &ProcessGroup, own: &HashMap<String, f64>) -> Result<HashMap<String, f64>> {
    let ranks = group.size().get() as f64;
    let key = "names";
    if group.rank() == Rank::ZERO {
        let names: Vec<&str> = own.keys().map(String::as_str).collect();
        group.store().set(key, names.join(","))?;
    }
    let names = String::from_utf8(group.store().get(key)?)?;
    // Nobody writes the next order before all have read this one.
    group.barrier()?;
    let mut means = HashMap::new();
    for name in names.split(',') {
        let mut sum = Tensor::from_slice(&[own[name]]);
        group.all_reduce(&mut sum, ReduceOp::Sum)?;
        means.insert(name.to_owned(), sum.double_value(&[0]) / ranks);
    }
    // Nobody reads the next order before rank 0 has written it.
    if group.rank() == Rank::ZERO {
        group.store().delete(key)?;
    }
    group.barrier()?;
    Ok(means)
}
