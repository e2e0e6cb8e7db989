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
    let mut means = HashMap::new();
    for (name, value) in own {
        let mut sum = Tensor::from_slice(&[*value]);
        group.all_reduce(&mut sum, ReduceOp::Sum)?;
        means.insert(name.clone(), sum.double_value(&[0]) / ranks);
    }
    Ok(means)
}
