//! Why the environment does not describe a worker.

use lockstep_contract::scheduler::TaskError;

use crate::{LocalRank, Rank, WorldSize};

/// Why the environment does not describe a worker.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvError {
    /// Variables that every launcher sets are absent.
    #[error("{} not set: {}", listed(names), start_hint(names, *slurm))]
    Missing {
        /// All absent names, in the order of [`LaunchEnv`].
        names: Vec<&'static str>,
        /// True if Slurm started this process (`SLURM_PROCID` is set).
        slurm: bool,
    },
    /// The program that started this process numbers it incompletely, or nothing says where the ranks meet.
    #[error(transparent)]
    Task(#[from] TaskError),
    /// A value does not have the form that its variable requires.
    #[error("{name} is {value:?}, which is not {expected}: let the launcher set it, or unset it")]
    Unparsable {
        /// The variable.
        name: &'static str,
        /// Its value, lossily decoded.
        value: String,
        /// The expected form.
        expected: &'static str,
    },
    /// The rank does not exist in this world.
    #[error("RANK is {rank} but WORLD_SIZE is {world_size}: ranks run from 0 to WORLD_SIZE - 1")]
    RankOutsideWorld {
        /// `RANK`.
        rank: Rank,
        /// `WORLD_SIZE`.
        world_size: WorldSize,
    },
    /// The local rank does not exist on this node.
    #[error(
        "LOCAL_RANK is {local_rank} but LOCAL_WORLD_SIZE is {local_world_size}: local ranks run from 0 to LOCAL_WORLD_SIZE - 1"
    )]
    LocalRankOutsideNode {
        /// `LOCAL_RANK`.
        local_rank: LocalRank,
        /// `LOCAL_WORLD_SIZE`.
        local_world_size: WorldSize,
    },
    /// The node has more processes than the whole job.
    #[error(
        "LOCAL_WORLD_SIZE is {local_world_size} but WORLD_SIZE is {world_size}: a node cannot hold more processes than the job; are the two swapped?"
    )]
    NodeLargerThanWorld {
        /// `LOCAL_WORLD_SIZE`.
        local_world_size: WorldSize,
        /// `WORLD_SIZE`.
        world_size: WorldSize,
    },
}

fn listed(names: &[&str]) -> String {
    match names {
        [one] => format!("{one} is"),
        _ => format!("{} are", names.join(", ")),
    }
}

fn start_hint(names: &[&str], slurm: bool) -> &'static str {
    if slurm && names.contains(&"RANK") {
        return "Slurm started this process (SLURM_PROCID is set), but not as a task of a step: start a task for each rank with \
                `srun PROGRAM`, or let srun start one `lockstep run` per node, and that start this program";
    }
    "start the program with `lockstep run --standalone --nproc-per-node=2 PROGRAM` (or torchrun), or use `lockstep::spawn`"
}
