//! The lessons by name, in the order in which they run. Each has its own file.

use anyhow::Result;
use clap::ValueEnum;

use crate::args::Args;
use crate::lab::Lab;
use crate::{all_to_all, compare, doubling, groups, ops, ring, rooted, timing};

/// A lesson, with c10d's name if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Lesson {
    /// One rank's tensor goes to all
    Broadcast,
    /// One rank sends each rank a tensor
    Scatter,
    /// Every rank's tensor goes to one
    Gather,
    /// The sum of all ranks' tensors, on one
    Reduce,
    /// The sum of all ranks' tensors, on all
    AllReduce,
    /// Every rank's tensor goes to all
    AllGather,
    /// The sum of all ranks' tensors; each rank keeps its share
    ReduceScatter,
    /// Every rank sends something to every other
    AllToAll,
    /// No rank continues before all have arrived
    Barrier,
    /// all_reduce with sum, product, min and max
    Ops,
    /// Collectives among some of the ranks
    Groups,
    /// An all-reduce by hand, in chunks around a ring
    Ring,
    /// An all-reduce by hand, in rounds of pairs
    Doubling,
    /// The results of both, compared with the engine's
    Compare,
    /// What the order of a sum does to floats
    LastBits,
    /// The times of both by message size, compared with the engine's
    Timing,
}

impl Lesson {
    /// Runs the lesson. Every rank must call this, as with a collective.
    pub(crate) fn run(self, lab: &mut Lab<'_>, args: &Args) -> Result<()> {
        match self {
            Lesson::Broadcast => rooted::broadcast(lab),
            Lesson::Scatter => rooted::scatter(lab),
            Lesson::Gather => rooted::gather(lab),
            Lesson::Reduce => rooted::reduce(lab),
            Lesson::AllReduce => all_to_all::all_reduce(lab),
            Lesson::AllGather => all_to_all::all_gather(lab),
            Lesson::ReduceScatter => all_to_all::reduce_scatter(lab),
            Lesson::AllToAll => all_to_all::all_to_all(lab),
            Lesson::Barrier => all_to_all::barrier(lab),
            Lesson::Ops => ops::ops(lab),
            Lesson::Groups => groups::groups(lab, &args.groups),
            Lesson::Ring => ring::lesson(lab),
            Lesson::Doubling => doubling::lesson(lab),
            Lesson::Compare => compare::equal(lab),
            Lesson::LastBits => compare::last_bits(lab),
            Lesson::Timing => timing::lesson(lab, &args.timing),
        }
    }
}
