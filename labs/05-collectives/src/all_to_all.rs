//! Collectives without a root: all_reduce, all_gather, reduce_scatter, all_to_all, barrier.

use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use c10d::{ReduceOp, Splits};
use tch::Tensor;

use crate::lab::Lab;
use crate::pictures::Held;

pub(crate) fn all_reduce(lab: &mut Lab<'_>) -> Result<()> {
    let mut tensor = lab.start(4);
    let before = Held::tensor(&tensor)?;
    lab.group.all_reduce(&mut tensor, ReduceOp::Sum)?;
    lab.show("all_reduce", "the sum, on all", &[("before", before), ("after", Held::tensor(&tensor)?)])
}

pub(crate) fn all_gather(lab: &mut Lab<'_>) -> Result<()> {
    let input = lab.start(2);
    let mut outputs: Vec<Tensor> = (0..lab.world()).map(|_| input.zeros_like()).collect();
    lab.group.all_gather(&mut outputs, &input)?;
    let stages = [("before", Held::tensor(&input)?), ("after", Held::tensors(&outputs)?)];
    lab.show("all_gather", "every rank's tensor, on all", &stages)
}

// ANCHOR: reduce_scatter
pub(crate) fn reduce_scatter(lab: &mut Lab<'_>) -> Result<()> {
    let inputs = lab.start(lab.world()).split(1, 0);
    let mut output = lab.tensor(&[0]);
    lab.group.reduce_scatter(&mut output, &inputs, ReduceOp::Sum)?;
    let stages = [("before", Held::tensors(&inputs)?), ("after", Held::tensor(&output)?)];
    lab.show("reduce_scatter", "the sum of all tensors r, on rank r", &stages)
}
// ANCHOR_END: reduce_scatter

pub(crate) fn all_to_all(lab: &mut Lab<'_>) -> Result<()> {
    let input = lab.start(lab.world());
    let mut output = input.zeros_like();
    lab.group.all_to_all_single(&mut output, &input, &Splits::Equal)?;
    let stages = [("before", Held::tensor(&input)?), ("after", Held::tensor(&output)?)];
    lab.show("all_to_all", "number r of every rank, on rank r", &stages)
}

// ANCHOR: barrier
/// Each rank arrives a little later than the one before it and increments a counter in the store. What a rank reads before the
/// barrier depends on timing; after the barrier, all ranks have counted.
pub(crate) fn barrier(lab: &mut Lab<'_>) -> Result<()> {
    let store = lab.group.store();
    sleep(Duration::from_millis(20) * lab.group.rank().get() as u32);
    let before = store.add("lab-05/came", 1)?;
    lab.group.barrier()?;
    let after = store.add("lab-05/came", 0)?;
    // No rank may count for the next barrier before all have read.
    lab.group.barrier()?;
    store.add("lab-05/came", -1)?;
    lab.group.barrier()?;
    let stages = [("came before it", Held::One(vec![before])), ("came, behind it", Held::One(vec![after]))];
    lab.show("barrier", "how many ranks have come", &stages)
}
// ANCHOR_END: barrier
