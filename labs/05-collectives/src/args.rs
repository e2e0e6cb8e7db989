//! The command line, and what can be refused before any rank has met another.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::Result;
use clap::{Parser, ValueEnum};
use lockstep::device::DeviceChoice;
use lockstep::exit::UsageError;
use lockstep::{LaunchEnv, Rank, WorldSize};

use crate::lesson::Lesson;
use crate::timing::TimingOptions;

/// Ranks where no launcher has started some and `--nprocs` says nothing: the least at which ring and doubling differ.
const RANKS: usize = 4;

/// See what every rank holds before and after each collective
#[derive(Parser)]
pub(crate) struct Args {
    /// What to show, in this order; everything where nothing is named
    #[arg(value_enum)]
    lessons: Vec<Lesson>,
    /// Ranks to run as threads of this process, where no launcher has started them; 4 if not given
    #[arg(long)]
    nprocs: Option<usize>,
    /// The rank from which, or to which, values go in broadcast, scatter, reduce and gather
    #[arg(long, default_value_t = 0)]
    root: usize,
    /// Ranks of a group for `groups`, such as 0,2; give it again for a second group. Even and odd ranks if not given
    #[arg(long = "group", value_name = "RANKS")]
    pub(crate) groups: Vec<Members>,
    #[command(flatten)]
    pub(crate) timing: TimingOptions,
    /// A folder in which each rank writes rank-R.json: what it held at the end of each lesson
    #[arg(long)]
    pub(crate) results: Option<PathBuf>,
    /// Where the tensors lie
    #[arg(long, value_enum, default_value_t)]
    pub(crate) device: DeviceChoice,
}

/// The ranks of a group, as the command line has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Members(pub(crate) Vec<Rank>);

impl FromStr for Members {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |word: &str| word.trim().parse().map(Rank::new).map_err(|_| format!("{word:?} is no rank"));
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
    /// What no world of this size can have: a group of nobody, of ranks that there are not, or of one rank twice.
    fn check(&self, world: WorldSize) -> Result<(), UsageError> {
        let usage = |words: String| Err(UsageError(format!("--group {self}: {words}")));
        let twice = |place: usize| self.0[..place].contains(&self.0[place]);
        if self.0.is_empty() {
            usage("a group needs at least one rank".into())
        } else if let Some(rank) = self.0.iter().find(|&&rank| !world.contains(rank)) {
            usage(format!("rank {rank} is outside a world of {world}; give ranks from 0 to {}", world.get() - 1))
        } else if let Some(place) = (0..self.0.len()).find(|&place| twice(place)) {
            usage(format!("rank {} stands in it twice", self.0[place]))
        } else {
            Ok(())
        }
    }
}

impl Args {
    /// How many ranks this process should start; `None` leaves it to the launcher that has started it.
    pub(crate) fn ranks_to_start(&self) -> Result<Option<usize>> {
        let launched = LaunchEnv::from_env_if_launched()?.is_some();
        Ok(self.nprocs.or((!launched).then_some(RANKS)))
    }

    /// Refuses what no rank could do. All ranks have the same command line, so all of them stop here.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_ranks_of_a_group_and_names_a_word_that_is_none() {
        assert_eq!("0, 2".parse(), Ok(Members([0, 2].map(Rank::new).to_vec())));
        assert_eq!("".parse(), Ok(Members(Vec::new())));
        assert_eq!("0,two".parse::<Members>(), Err("\"two\" is no rank".into()));
        assert_eq!("0,".parse::<Members>(), Err("\"\" is no rank".into()));
    }

    #[test]
    fn shows_everything_where_nothing_is_named() {
        let all = Args::parse_from(["lab"]);
        assert_eq!(all.lessons().len(), Lesson::value_variants().len());
        assert_eq!(Args::parse_from(["lab", "ring", "all_reduce"]).lessons(), [Lesson::Ring, Lesson::AllReduce]);
    }

    #[test]
    fn a_root_outside_the_world_is_refused_with_the_ranks_that_there_are() {
        let args = Args::parse_from(["lab", "--root", "2"]);
        assert!(args.check(WorldSize::new(3).unwrap()).is_ok());
        let told = args.check(WorldSize::new(2).unwrap()).unwrap_err().to_string();
        assert_eq!(told, "--root 2: no such rank in a world of 2; give 0 to 1");
    }

    #[test]
    fn a_group_that_no_world_has_is_refused_whatever_is_to_be_shown() {
        let told = |group: &str| {
            let args = Args::parse_from(["lab", "ring", "--group", "0,1", "--group", group]);
            args.check(WorldSize::new(4).unwrap()).map_err(|error| error.to_string())
        };
        assert_eq!(told("3,0"), Ok(()));
        assert_eq!(told("0,9"), Err("--group 0,9: rank 9 is outside a world of 4; give ranks from 0 to 3".into()));
        assert_eq!(told("1,2,1"), Err("--group 1,2,1: rank 1 stands in it twice".into()));
        assert_eq!(told(""), Err("--group : a group needs at least one rank".into()));
    }
}
