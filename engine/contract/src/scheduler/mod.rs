//! What Slurm, PBS, MPI's launchers or a host file say about a job: its nodes, its first node, and the place of a process in
//! it.
//!
//! An [`Allocation`] is a job as `lockstep run` sees it, which is started once on each node; a [`Task`] is the place of a training
//! program that `mpirun`, `mpiexec` or `srun` started once for each rank. Both read only variables and files; they run no command. A
//! [`Question`] is a command that says when the job ends, for those who run it.
//!
//! The variables are those of Slurm (man srun, "OUTPUT ENVIRONMENT VARIABLES"; tested with Slurm 22.05), PBS Pro and OpenPBS
//! (man qsub, "PBS_NODEFILE"; man pbsdsh), and of MPI's launchers (`mpi`; tested with Open MPI 4.1 and MPICH 5.0).

mod find;
mod hosts;
mod limits;
mod mpi;
mod slurm;
mod task;

pub use hosts::{HostFileError, expand};
pub use limits::{JobState, Question, job_end, restarts};
pub use mpi::size_variables;
pub use task::{Number, Task, TaskError};

/// The ports at which the processes of a job meet: below Linux's ephemeral ports (32768 and up) and apart from torchrun's 29400
/// and 29500.
pub const PORTS: std::ops::Range<u16> = 20_000..29_000;

/// The job in which this agent was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// The scheduler of the job.
    pub scheduler: Scheduler,
    /// Its id, as the scheduler names it; empty if it has none.
    pub id: String,
    /// The number of its nodes, and the variable or file that says so.
    pub nodes: (usize, String),
    /// The names of its nodes in order, and the variable or file that says so; `None` if they are not known.
    pub hosts: Option<(Vec<String>, String)>,
    /// How this agent was started.
    pub started: Started,
}

/// What started the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheduler {
    Slurm,
    /// PBS Pro, OpenPBS or Torque.
    Pbs,
    /// MPI's launcher (mpirun, mpiexec) without a scheduler.
    Mpi,
    /// `--hostfile`, without a scheduler.
    HostFile,
}

/// How this agent was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Started {
    /// One agent on each node.
    OnEachNode {
        /// The number of this node from 0, and the variable that says so; `None` if it is not known.
        node: Option<(usize, &'static str)>,
    },
    /// By the job's script, only on the first node.
    ByTheScript,
    /// Several times on a node.
    SeveralTimes {
        /// The number of agents on all nodes.
        agents: usize,
        /// The variable that says so, with its value.
        variable: String,
    },
}

/// Access to the environment: variables by name, and files by path.
pub struct Read<'a> {
    /// The value of a variable.
    pub variable: &'a dyn Fn(&str) -> Option<String>,
    /// The text of a file.
    pub file: &'a dyn Fn(&str) -> std::io::Result<String>,
}

impl Read<'static> {
    /// This process's environment.
    #[must_use]
    pub fn here() -> Self {
        Read { variable: &variable, file: &file }
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

fn file(path: &str) -> std::io::Result<String> {
    std::fs::read_to_string(path)
}

impl Allocation {
    /// A name that no other job has, such as `SLURM_JOB_ID=17`.
    #[must_use]
    pub fn name(&self) -> String {
        match self.scheduler {
            Scheduler::Slurm => format!("SLURM_JOB_ID={}", self.id.split('.').next().unwrap_or_default()),
            Scheduler::Pbs => format!("PBS_JOBID={}", self.id),
            Scheduler::Mpi | Scheduler::HostFile => self.id.clone(),
        }
    }

    /// Returns true if the scheduler ends the job at a time limit.
    #[must_use]
    pub fn sends_sigterm_at_the_end(&self) -> bool {
        matches!(self.scheduler, Scheduler::Slurm | Scheduler::Pbs)
    }

    /// The port at which the job's processes meet. It is the same on each node of the job, and most likely a different one for
    /// another job on the same node.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port_for("")
    }

    /// The port at which programs other than the job's own meet for `purpose`.
    #[must_use]
    pub fn port_for(&self, purpose: &str) -> u16 {
        port_of(&format!("{} {}{purpose}", self.name(), self.id))
    }

    /// The names of the nodes, if they are known.
    #[must_use]
    pub fn host_names(&self) -> &[String] {
        self.hosts.as_ref().map_or(&[], |(hosts, _)| hosts)
    }

    /// The command that starts one agent on each node.
    #[must_use]
    pub fn one_agent_per_node(&self) -> String {
        match self.scheduler {
            Scheduler::Slurm => {
                let nodes = self.nodes.0.max(self.host_names().len());
                format!("srun --nodes={nodes} --ntasks-per-node=1 lockstep run ...")
            }
            Scheduler::Pbs => "pbsdsh -u -- lockstep run ... (or: mpiexec -ppn 1 lockstep run ...)".to_owned(),
            Scheduler::Mpi => "mpirun --map-by ppr:1:node lockstep run ...".to_owned(),
            Scheduler::HostFile => "ssh HOST lockstep run --hostfile=FILE ...".to_owned(),
        }
    }

    /// The job's name for messages: `Slurm job 17.0`.
    #[must_use]
    pub fn title(&self) -> String {
        match self.scheduler {
            Scheduler::Slurm => format!("Slurm job {}", self.id),
            Scheduler::Pbs => format!("PBS job {}", self.id),
            Scheduler::Mpi => "MPI job".to_owned(),
            Scheduler::HostFile => "host file".to_owned(),
        }
    }
}

/// One of [`PORTS`], which follows from the key by FNV-1a: the programs of one job may be of different builds.
pub(super) fn port_of(key: &str) -> u16 {
    let hash = key
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    PORTS.start + (hash % u64::from(PORTS.end - PORTS.start)) as u16
}

#[cfg(test)]
mod testing {
    use std::io;

    use super::*;
    use crate::scheduler::HostFileError;

    /// Finds a job in these variables; each file of `files` is a path and its text.
    pub(crate) fn find(
        variables: &[(&str, &str)],
        files: &[(&str, &str)],
        hostfile: Option<&str>,
    ) -> Option<Allocation> {
        try_find(variables, files, hostfile).unwrap()
    }

    pub(crate) fn try_find(
        variables: &[(&str, &str)],
        files: &[(&str, &str)],
        hostfile: Option<&str>,
    ) -> Result<Option<Allocation>, HostFileError> {
        let of = |pairs: &[(&str, &str)], name: &str| {
            pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        };
        let variable = |name: &str| of(variables, name);
        let file = |path: &str| of(files, path).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound));
        Allocation::find(&Read { variable: &variable, file: &file }, hostfile)
    }
}
