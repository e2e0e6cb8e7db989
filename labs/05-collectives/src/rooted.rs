//! Collectives with a root: broadcast, scatter, gather, reduce.

use anyhow::Result;
use c10d::ReduceOp;
use tch::Tensor;

use crate::lab::Lab;
use crate::pictures::Held;

// ANCHOR: broadcast
pub(crate) fn broadcast(lab: &mut Lab<'_>) -> Result<()> {
    let mut tensor = lab.start(4);
    let before = Held::tensor(&tensor)?;
    lab.group.broadcast(&mut tensor, lab.root)?;
    let words = format!("rank {}'s tensor, on all", lab.root);
    lab.show("broadcast", &words, &[("before", before), ("after", Held::tensor(&tensor)?)])
}
// ANCHOR_END: broadcast

// ANCHOR: scatter
pub(crate) fn scatter(lab: &mut Lab<'_>) -> Result<()> {
    // The root has one tensor for each rank; the other ranks have none.
    let inputs = if lab.is_root() { lab.start(lab.world()).split(1, 0) } else { Vec::new() };
    let mut output = lab.tensor(&[0]);
    lab.group.scatter(&mut output, &inputs, lab.root)?;
    let words = format!("tensor r of rank {}'s list, on rank r", lab.root);
    lab.show("scatter", &words, &[("before", Held::tensors(&inputs)?), ("after", Held::tensor(&output)?)])
}
// ANCHOR_END: scatter

pub(crate) fn gather(lab: &mut Lab<'_>) -> Result<()> {
    let input = lab.start(2);
    let places = if lab.is_root() { lab.world() } else { 0 };
    let mut outputs: Vec<Tensor> = (0..places).map(|_| input.zeros_like()).collect();
    lab.group.gather(&mut outputs, &input, lab.root)?;
    let words = format!("every rank's tensor, on rank {}", lab.root);
    lab.show("gather", &words, &[("before", Held::tensor(&input)?), ("after", Held::tensors(&outputs)?)])
}

// ANCHOR: reduce
/// The picture's numbers on the other ranks are not results: a backend may overwrite their tensors.
pub(crate) fn reduce(lab: &mut Lab<'_>) -> Result<()> {
    let mut tensor = lab.start(4);
    let before = Held::tensor(&tensor)?;
    lab.group.reduce(&mut tensor, lab.root, ReduceOp::Sum)?;
    let words = format!("the sum, on rank {}; what the others hold is not to be used", lab.root);
    lab.show("reduce", &words, &[("before", before), ("after", Held::tensor(&tensor)?)])
}
// ANCHOR_END: reduce
