//! Reads a job's nodes, its head node, and how this agent was started, from a scheduler, MPI's launcher or a host file.
//!
//! [`Allocation::here`] reads only variables and files; it runs no command. [`Allocation::apply`] fills in the rendezvous
//! flags that the user did not give, and refuses flags that cannot work. The variables are those of Slurm (man srun,
//! "OUTPUT ENVIRONMENT VARIABLES"; tested with Slurm 22.05), PBS Pro and OpenPBS (man qsub, "PBS_NODEFILE"; man pbsdsh),
//! Open MPI (`OMPI_COMM_WORLD_*`) and Hydra (`PMI_*`).

mod allocation;
mod apply;
mod hosts;
mod mpi;
mod pbs;
mod slurm;

pub use allocation::{Allocation, Scheduler, Started};
pub use apply::Taken;
pub use hosts::{HostFileError, expand};
