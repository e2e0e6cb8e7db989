//! What a scheduler, MPI's launcher or a host file says of the job: its nodes, which of them is the first, and how this agent was
//! started.
//!
//! [`Allocation::find`] reads it, from variables and files alone; no command is run. [`Allocation::apply`] fills in the rendezvous flags that the user
//! did not give, and refuses what cannot work. The variables are those of Slurm (man srun, "OUTPUT ENVIRONMENT VARIABLES"; seen with
//! Slurm 22.05), PBS Pro and OpenPBS (man qsub, "PBS_NODEFILE"; man pbsdsh), Open MPI (`OMPI_COMM_WORLD_*`) and Hydra (`PMI_*`).

mod allocation;
mod apply;
mod hosts;
mod mpi;
mod pbs;
mod slurm;

pub use allocation::{Allocation, Read, Scheduler, Started};
pub use apply::Taken;
pub use hosts::{HostFileError, expand};
