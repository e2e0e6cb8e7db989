//! Answers to `same_order`: wrong ones, and unusual right ones.

use std::collections::{BTreeMap, HashMap};

use anyhow::Result;
use c10d::{ProcessGroup, Rank, ReduceOp};
use lockstep_answers::edit;
use tch::Tensor;

/// Sends rank 0's values to all ranks.
#[edit(group.all_reduce(&mut sums, ReduceOp::Sum)?; => group.broadcast(&mut sums, Rank::ZERO)?; sums *= ranks;)]
pub fn of_rank_0() {}

/// The given program: a hash map has a different order in every process.
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

/// Sorts by the values, which differ between ranks.
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

/// Right: uses rank 0's order, which it publishes in the store.
pub fn rank_0s(group: &ProcessGroup, own: &HashMap<String, f64>) -> Result<HashMap<String, f64>> {
    let ranks = group.size().get() as f64;
    let key = "names";
    if group.rank() == Rank::ZERO {
        let names: Vec<&str> = own.keys().map(String::as_str).collect();
        group.store().set(key, names.join(","))?;
    }
    let names = String::from_utf8(group.store().get(key)?)?;
    // All ranks must have read this order before rank 0 writes the next one.
    group.barrier()?;
    let mut means = HashMap::new();
    for name in names.split(',') {
        let mut sum = Tensor::from_slice(&[own[name]]);
        group.all_reduce(&mut sum, ReduceOp::Sum)?;
        means.insert(name.to_owned(), sum.double_value(&[0]) / ranks);
    }
    // No rank may read the next order before rank 0 has written it.
    if group.rank() == Rank::ZERO {
        group.store().delete(key)?;
    }
    group.barrier()?;
    Ok(means)
}

/// Sorts by the length of the names; those that are equally long keep the map's order.
pub fn by_length(group: &ProcessGroup, own: &HashMap<String, f64>) -> Result<HashMap<String, f64>> {
    let ranks = group.size().get() as f64;
    let mut names: Vec<&String> = own.keys().collect();
    names.sort_by_key(|name| name.len());
    let mut means = HashMap::new();
    for name in names {
        let mut sum = Tensor::from_slice(&[own[name]]);
        group.all_reduce(&mut sum, ReduceOp::Sum)?;
        means.insert(name.clone(), sum.double_value(&[0]) / ranks);
    }
    Ok(means)
}

/// Reduces by name, and reads the means in the map's order.
pub fn unsorted_names(group: &ProcessGroup, own: &HashMap<String, f64>) -> Result<HashMap<String, f64>> {
    let sorted: BTreeMap<&String, f64> = own.iter().map(|(name, value)| (name, *value)).collect();
    let values: Vec<f64> = sorted.into_values().collect();
    let mut sums = Tensor::from_slice(&values) / group.size().get() as f64;
    group.all_reduce(&mut sums, ReduceOp::Sum)?;
    let means = Vec::<f64>::try_from(sums)?;
    Ok(own.keys().zip(means).map(|(name, mean)| (name.clone(), mean)).collect())
}

/// Divides by the number of metrics.
pub fn by_metrics(group: &ProcessGroup, own: &HashMap<String, f64>) -> Result<HashMap<String, f64>> {
    let sorted: BTreeMap<_, _> = own.clone().into_iter().collect();
    let mut means = HashMap::new();
    for (name, value) in sorted {
        let mut sum = Tensor::from_slice(&[value]);
        group.all_reduce(&mut sum, ReduceOp::Sum)?;
        means.insert(name, sum.double_value(&[0]) / own.len() as f64);
    }
    Ok(means)
}

/// The metrics with one all-reduce each, in this order.
fn in_order(group: &ProcessGroup, own: &HashMap<String, f64>, names: &[&String]) -> Result<HashMap<String, f64>> {
    let mut means = HashMap::new();
    for name in names {
        let mut sum = Tensor::from_slice(&[own[*name]]);
        group.all_reduce(&mut sum, ReduceOp::Sum)?;
        means.insert((*name).clone(), sum.double_value(&[0]) / group.size().get() as f64);
    }
    Ok(means)
}

/// Sorts by the first letter, which two names share.
pub fn by_first_letter(group: &ProcessGroup, own: &HashMap<String, f64>) -> Result<HashMap<String, f64>> {
    let mut names: Vec<&String> = own.keys().collect();
    names.sort_by_key(|name| name.chars().next());
    in_order(group, own, &names)
}

/// Right: sorts by length, and names of one length by their letters, backwards.
pub fn by_length_and_letters(group: &ProcessGroup, own: &HashMap<String, f64>) -> Result<HashMap<String, f64>> {
    let mut names: Vec<&String> = own.keys().collect();
    names.sort_by_key(|name| std::cmp::Reverse((name.len(), (*name).clone())));
    in_order(group, own, &names)
}
