//! The command line with the lessons by name, and the checks that need no other rank.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::Result;
use clap::{Parser, ValueEnum};
use lockstep::device::DeviceChoice;
use lockstep::exit::UsageError;
use lockstep::{LaunchEnv, Rank, WorldSize};

use crate::timing::{self, TimingOptions};
use crate::{Lab, by_hand, collectives, compare};

/// The number of ranks without a launcher and `--nprocs`: the smallest at which ring and doubling differ.
const RANKS: usize = 4;

/// See what every rank holds before and after each collective
#[derive(Parser)]
pub(crate) struct Args {
    /// The lessons to run, in this order; all of them by default
    #[arg(value_enum)]
    lessons: Vec<Lesson>,
    /// Ranks to run as threads of this process if no launcher has started them; 4 by default
    #[arg(long)]
    nprocs: Option<usize>,
    /// The rank from which, or to which, values go in broadcast, scatter, reduce and gather
    #[arg(long, default_value_t = 0)]
    root: usize,
    /// Ranks of a group for `groups`, such as 0,2; give it again for a second group. Even and odd ranks by default
    #[arg(long = "group", value_name = "RANKS")]
    pub(crate) groups: Vec<Members>,
    #[command(flatten)]
    pub(crate) timing: TimingOptions,
    /// A folder in which each rank writes rank-R.json with what it held at the end of each lesson
    #[arg(long, value_parser = lockstep::output::parse_folder)]
    pub(crate) results: Option<PathBuf>,
    /// The device of the tensors
    #[arg(long, value_enum, default_value_t)]
    pub(crate) device: DeviceChoice,
}

/// The ranks of a group, as given on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Members(pub(crate) Vec<Rank>);

impl FromStr for Members {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |word: &str| word.trim().parse().map(Rank::new).map_err(|_| format!("{word:?} is not a rank"));
        let words = text.split(',').filter(|_| !text.is_empty());
        words.map(number).collect::<Result<_, _>>().map(Members)
    }
}

impl fmt::Display for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.iter().map(Rank::to_string).collect::<Vec<_>>().join(","))
    }
}

impl Members {
    /// Rejects an empty group, ranks outside the world, and duplicate ranks.
    fn check(&self, world: WorldSize) -> Result<(), UsageError> {
        let usage = |words: String| Err(UsageError(format!("--group {self}: {words}")));
        let twice = |place: usize| self.0[..place].contains(&self.0[place]);
        if self.0.is_empty() {
            usage("a group needs at least one rank".into())
        } else if let Some(rank) = self.0.iter().find(|&&rank| !world.contains(rank)) {
            usage(format!("rank {rank} is outside a world of {world}; give ranks from 0 to {}", world.get() - 1))
        } else if let Some(place) = (0..self.0.len()).find(|&place| twice(place)) {
            usage(format!("rank {} is in it twice", self.0[place]))
        } else {
            Ok(())
        }
    }
}

impl Args {
    /// The number of ranks to start in this process. `None` if a launcher has started them.
    pub(crate) fn ranks_to_start(&self) -> Result<Option<usize>> {
        let launched = LaunchEnv::from_env_if_launched()?.is_some();
        Ok(self.nprocs.or((!launched).then_some(RANKS)))
    }

    /// Rejects invalid arguments. All ranks have the same command line, so all of them stop here.
    pub(crate) fn check(&self, world: WorldSize) -> Result<(), UsageError> {
        self.timing.sizes()?;
        self.groups.iter().try_for_each(|members| members.check(world))?;
        if world.contains(self.root()) {
            return Ok(());
        }
        let last = world.get() - 1;
        Err(UsageError(format!("--root {}: no such rank in a world of {world}; give 0 to {last}", self.root)))
    }

    pub(crate) fn root(&self) -> Rank {
        Rank::new(self.root)
    }

    pub(crate) fn lessons(&self) -> &[Lesson] {
        if self.lessons.is_empty() { Lesson::value_variants() } else { &self.lessons }
    }
}

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
            Lesson::Broadcast => collectives::broadcast(lab),
            Lesson::Scatter => collectives::scatter(lab),
            Lesson::Gather => collectives::gather(lab),
            Lesson::Reduce => collectives::reduce(lab),
            Lesson::AllReduce => collectives::all_reduce(lab),
            Lesson::AllGather => collectives::all_gather(lab),
            Lesson::ReduceScatter => collectives::reduce_scatter(lab),
            Lesson::AllToAll => collectives::all_to_all(lab),
            Lesson::Barrier => collectives::barrier(lab),
            Lesson::Ops => collectives::ops(lab),
            Lesson::Groups => collectives::groups(lab, &args.groups),
            Lesson::Ring => by_hand::ring(lab),
            Lesson::Doubling => by_hand::doubling(lab),
            Lesson::Compare => compare::equal(lab),
            Lesson::LastBits => compare::last_bits(lab),
            Lesson::Timing => timing::timing(lab, &args.timing),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_the_ranks_of_a_group_and_names_an_invalid_word() {
        assert_eq!("0, 2".parse(), Ok(Members([0, 2].map(Rank::new).to_vec())));
        assert_eq!("".parse(), Ok(Members(Vec::new())));
        assert_eq!("0,two".parse::<Members>(), Err("\"two\" is not a rank".into()));
        assert_eq!("0,".parse::<Members>(), Err("\"\" is not a rank".into()));
    }

    #[test]
    fn runs_all_lessons_by_default() {
        let all = Args::parse_from(["lab"]);
        assert_eq!(all.lessons().len(), Lesson::value_variants().len());
        assert_eq!(Args::parse_from(["lab", "ring", "all_reduce"]).lessons(), [Lesson::Ring, Lesson::AllReduce]);
    }

    #[test]
    fn rejects_a_root_outside_the_world_and_names_the_valid_ranks() {
        let args = Args::parse_from(["lab", "--root", "2"]);
        assert!(args.check(WorldSize::new(3).unwrap()).is_ok());
        let message = args.check(WorldSize::new(2).unwrap()).unwrap_err().to_string();
        assert_eq!(message, "--root 2: no such rank in a world of 2; give 0 to 1");
    }

    #[test]
    fn rejects_an_invalid_group_for_every_lesson() {
        let message = |group: &str| {
            let args = Args::parse_from(["lab", "ring", "--group", "0,1", "--group", group]);
            args.check(WorldSize::new(4).unwrap()).map_err(|error| error.to_string())
        };
        assert_eq!(message("3,0"), Ok(()));
        assert_eq!(message("0,9"), Err("--group 0,9: rank 9 is outside a world of 4; give ranks from 0 to 3".into()));
        assert_eq!(message("1,2,1"), Err("--group 1,2,1: rank 1 is in it twice".into()));
        assert_eq!(message(""), Err("--group : a group needs at least one rank".into()));
    }
}
