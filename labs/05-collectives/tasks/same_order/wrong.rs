//! Answers to `same_order`: wrong ones, and unusual right ones.

use std::collections::{BTreeMap, HashMap};

use anyhow::Result;
use c10d::{ProcessGroup, Rank, ReduceOp};
use lockstep_answers::{edit, given};
use tch::Tensor;

/// Sends rank 0's values to all ranks.
#[edit(group.all_reduce(&mut sums, ReduceOp::Sum)?; => group.broadcast(&mut sums, Rank::ZERO)?; sums *= ranks;)]
pub fn of_rank_0() {}

/// The given program: a hash map has a different order in every process.
#[given]
pub fn as_it_comes() {}

/// Sorts by the values, which differ between ranks.
#[given]
#[edit(for (name, value) in own =>
    let mut sorted: Vec<_> = own.iter().collect();
    sorted.sort_by(|one, other| one.1.total_cmp(other.1));
    for (name, value) in sorted
)]
pub fn by_value() {}

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

/// The metrics in the order of this key of their names.
fn sorted<'a, K: Ord>(own: &'a HashMap<String, f64>, key: impl Fn(&'a str) -> K) -> Vec<(&'a String, &'a f64)> {
    let mut all: Vec<_> = own.iter().collect();
    all.sort_by_key(|(name, _)| key(name));
    all
}

/// Sorts by the length of the names; those that are equally long keep the map's order.
#[given]
#[edit(for (name, value) in own => for (name, value) in sorted(own, |name| name.len()))]
pub fn by_length() {}

/// Reduces by name, and reads the means in the map's order.
#[edit(names.into_iter().cloned() => own.keys().cloned())]
pub fn unsorted_names() {}

/// Divides by the number of metrics.
#[edit(sums / ranks => sums / own.len() as f64)]
pub fn by_metrics() {}

/// Sorts by the first letter, which two names share.
#[given]
#[edit(for (name, value) in own => for (name, value) in sorted(own, |name| name.chars().next()))]
pub fn by_first_letter() {}

/// Sorts without regard to case, which leaves two names in the map's order.
#[given]
#[edit(for (name, value) in own => for (name, value) in sorted(own, |name| name.to_lowercase()))]
pub fn without_case() {}

/// Right: sorts by length, and names of one length by their letters, backwards.
#[given]
#[edit(for (name, value) in own => for (name, value) in sorted(own, |name| std::cmp::Reverse((name.len(), name))))]
pub fn by_length_and_letters() {}
