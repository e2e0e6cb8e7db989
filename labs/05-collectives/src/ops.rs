//! The four ways to combine values of different ranks.

use anyhow::Result;
use c10d::ReduceOp;
use serde_json::Value;

use crate::lab::Lab;
use crate::pictures::Held;

// ANCHOR: ops
pub(crate) const OPS: [(&str, ReduceOp); 4] =
    [("sum", ReduceOp::Sum), ("product", ReduceOp::Product), ("min", ReduceOp::Min), ("max", ReduceOp::Max)];

/// Rank r starts with 1 + r mod 2 and 1 + r mod 3: small enough for a product over many ranks.
pub(crate) fn ops(lab: &mut Lab<'_>) -> Result<()> {
    let rank = lab.group.rank().get() as i64;
    let start = lab.tensor(&[1 + rank % 2, 1 + rank % 3]);
    let mut stages = vec![("before", Held::tensor(&start)?)];
    for (name, op) in OPS {
        let mut tensor = start.copy();
        lab.group.all_reduce(&mut tensor, op)?;
        stages.push((name, Held::tensor(&tensor)?));
    }
    lab.show("ops", "all_reduce of the same tensors with each operation", &stages)?;
    let held: Vec<Value> = stages.iter().skip(1).map(|(_, held)| held.to_json()).collect();
    lab.results.note("ops", held)
}
// ANCHOR_END: ops
