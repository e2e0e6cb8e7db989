//! What every rank holds before and after each collective: with a root, without one, with each operation, and in subgroups.

use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use c10d::{ProcessGroup, ReduceOp, Splits};
use lockstep::Rank;
use serde_json::Value;
use tch::Tensor;

use crate::Lab;
use crate::args::Members;
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

// ANCHOR: groups
/// Every group adds up its members' tensors, both at the same time: the messages of one group do not affect the other.
pub(crate) fn groups(lab: &mut Lab<'_>, asked: &[Members]) -> Result<()> {
    let members = if asked.is_empty() { even_and_odd(lab.world()) } else { asked.to_vec() };
    // Every rank creates every group, in the same order. Ranks outside of a group get `None`.
    let groups = members.iter().map(|members| new_group(lab.group, members)).collect::<Result<Vec<_>>>()?;
    let mut tensor = lab.start(4);
    let before = Held::tensor(&tensor)?;
    for group in groups.iter().flatten() {
        group.all_reduce(&mut tensor, ReduceOp::Sum)?;
    }
    let seats = ("rank in each group", Held::Several(groups.iter().map(seat).collect()));
    lab.show("groups", &words(&members), &[("before", before), seats, ("after", Held::tensor(&tensor)?)])?;
    all_but_rank_0(lab)
}
// ANCHOR_END: groups

// ANCHOR: members
/// A group numbers its members from 0: rank 0 of this group is rank 1 of the job. A rank outside of the group does nothing.
fn all_but_rank_0(lab: &mut Lab<'_>) -> Result<()> {
    if lab.world() == 1 {
        lab.say("group_broadcast: not shown, a group without rank 0 needs 2 ranks\n");
        return Ok(());
    }
    let members = Members((1..lab.world()).map(Rank::new).collect());
    let group = new_group(lab.group, &members)?;
    let mut tensor = lab.start(4);
    let before = Held::tensor(&tensor)?;
    if let Some(group) = &group {
        group.broadcast(&mut tensor, Rank::ZERO)?;
    }
    let seat = ("rank in the group", Held::One(seat(&group)));
    let words = "from rank 0 of a group that has all ranks but the job's rank 0";
    lab.show("group_broadcast", words, &[("before", before), seat, ("after", Held::tensor(&tensor)?)])
}
// ANCHOR_END: members

fn new_group(group: &ProcessGroup, members: &Members) -> Result<Option<ProcessGroup>> {
    Ok(group.new_group(&members.0, &Default::default())?)
}

fn seat(group: &Option<ProcessGroup>) -> Vec<i64> {
    group.iter().map(|group| group.rank().get() as i64).collect()
}

fn even_and_odd(world: usize) -> Vec<Members> {
    let of = |first: usize| Members((first..world).step_by(2).map(Rank::new).collect());
    (0..world.min(2)).map(of).collect()
}

fn words(groups: &[Members]) -> String {
    let names: Vec<String> = groups.iter().map(|members| format!("{{{members}}}")).collect();
    format!("all_reduce in each of {}", names.join(" and "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deals_ranks_into_even_and_odd_ones() {
        let listed = |world| words(&even_and_odd(world));
        assert_eq!(listed(5), "all_reduce in each of {0,2,4} and {1,3}");
        assert_eq!(listed(2), "all_reduce in each of {0} and {1}");
        assert_eq!(listed(1), "all_reduce in each of {0}");
    }
}
