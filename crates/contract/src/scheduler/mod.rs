//! What Slurm, PBS, MPI's launchers or a host file say of a job: its nodes, its first node, and the place of a process in it.
//!
//! An [`Allocation`] is a job as `lockstep run` sees it, which is started once on each node; a [`Task`] is the place of a training
//! program that `mpirun`, `mpiexec` or `srun` started once for each rank. Both read only variables and files; they run no command. A
//! [`Question`] is a command that says when the job ends, for those who run it.
//! The variables are those of Slurm (man srun, "OUTPUT ENVIRONMENT VARIABLES"; tested with Slurm 22.05), PBS Pro and OpenPBS
//! (man qsub, "PBS_NODEFILE"; man pbsdsh), and of MPI's launchers ([`mpi`]; tested with Open MPI 4.1 and MPICH 5.0).

mod allocation;
mod find;
mod hosts;
mod limits;
mod mpi;
mod pbs;
mod slurm;
mod task;

pub use allocation::{Allocation, PORTS, Read, Scheduler, Started};
pub use hosts::{HostFileError, expand};
pub use limits::{JobState, Question, job_end, restarts};
pub use mpi::size_variables;
pub use task::{Number, Task, TaskError};
