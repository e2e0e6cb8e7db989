//! Task 3: metrics by name. Spot the bug.
//!
//! After an epoch, every rank has measured the same metrics on its own samples: loss, accuracy, recall and so on. All ranks
//! need the mean of each metric over the ranks.

use std::collections::{BTreeMap, HashMap};

use anyhow::Result;
use c10d::{ProcessGroup, ReduceOp};
use tch::Tensor;

/// Returns the mean of every metric over the ranks. The names of the metrics are the same on all ranks.
pub fn same_order(group: &ProcessGroup, own: &HashMap<String, f64>) -> Result<HashMap<String, f64>> {
    let ranks = group.size().get() as f64;
    // <answer>
    //~ let mut means = HashMap::new();
    //~ for (name, value) in own {
    //~     let mut sum = Tensor::from_slice(&[*value]);
    //~     group.all_reduce(&mut sum, ReduceOp::Sum)?;
    //~     means.insert(name.clone(), sum.double_value(&[0]) / ranks);
    //~ }
    //~ Ok(means)
    // A HashMap has a different order in every process; a BTreeMap has the same order in all. One tensor also saves messages.
    let (names, values): (Vec<&String>, Vec<f64>) = own.iter().collect::<BTreeMap<_, _>>().into_iter().unzip();
    let mut sums = Tensor::from_slice(&values);
    group.all_reduce(&mut sums, ReduceOp::Sum)?;
    let means = Vec::<f64>::try_from(sums / ranks)?;
    Ok(names.into_iter().cloned().zip(means).collect())
    // </answer>
}
