//! Subgroups: collectives among some of the ranks, two groups at once, and ranks that are in no group.

use anyhow::Result;
use c10d::{ProcessGroup, ReduceOp};
use lockstep::Rank;

use crate::args::Members;
use crate::lab::Lab;
use crate::pictures::Held;

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
