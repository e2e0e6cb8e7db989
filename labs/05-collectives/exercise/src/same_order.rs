//! Task 3, spot the bug: metrics by name.
//!
//! After an epoch every rank has measured the same metrics on its own samples: loss, accuracy, recall and so on. All shall know
//! the mean over the ranks of each.

use std::collections::{BTreeMap, HashMap};

use anyhow::Result;
use c10d::{ProcessGroup, ReduceOp};
use tch::Tensor;

/// The mean over the ranks of every metric. All ranks have metrics of the same names.
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
