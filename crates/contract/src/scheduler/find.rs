//! Finds the job and the task of this process: asks Slurm, PBS and MPI's launchers in turn.

use super::allocation::{Allocation, Read, Scheduler, Started};
use super::hosts::{self, HostFileError};
use super::names::{HYDRA, OPEN_MPI};
use super::task::{Number, Task, TaskError, number, read_task};
use super::{mpi, pbs, slurm};

impl Allocation {
    /// Finds the job in the environment. The nodes in a host file override those of the scheduler.
    ///
    /// # Errors
    /// The host file cannot be read, or is not a list of hosts.
    pub fn find(read: &Read<'_>, hostfile: Option<&str>) -> Result<Option<Allocation>, HostFileError> {
        let found = slurm::find(read).or_else(|| pbs::find(read)).or_else(|| mpi::find(read));
        let Some(path) = hostfile else { return Ok(found) };
        let text = (read.file)(path).map_err(|source| HostFileError::Unreadable { path: path.into(), source })?;
        let hosts = hosts::read_file(path, &text)?;
        let (scheduler, id, started) = found.map_or_else(
            || (Scheduler::HostFile, String::new(), Started::OnEachNode { node: None }),
            |found| (found.scheduler, found.id, found.started),
        );
        let started = match started {
            // A user who lists the nodes starts the agents with a loop, in the script or elsewhere.
            Started::ByTheScript => Started::OnEachNode { node: None },
            other => other,
        };
        let from = format!("--hostfile={path}");
        Ok(Some(Allocation { scheduler, id, nodes: (hosts.len(), from.clone()), hosts: Some((hosts, from)), started }))
    }

    /// Finds the job in this process's environment.
    ///
    /// # Errors
    /// A host file that cannot be read, or that names no host.
    pub fn here(hostfile: Option<&str>) -> Result<Option<Allocation>, HostFileError> {
        Allocation::find(&Read::here(), hostfile)
    }

    /// The scheduler's job in this process's environment; `None` without a scheduler.
    #[must_use]
    pub fn batch_job() -> Option<Allocation> {
        Allocation::here(None).ok().flatten().filter(|job| !job.id.is_empty())
    }
}

impl Task {
    /// Finds this process's place; `None` if none of these programs started it. A program that `srun` or a batch script started may
    /// start others itself, so MPI's numbers win over Slurm's.
    ///
    /// # Errors
    /// The variables are incomplete, are not numbers, or contradict each other.
    pub fn find(read: &Read<'_>) -> Result<Option<Task>, TaskError> {
        let found = [read_task(read, &OPEN_MPI), read_task(read, &HYDRA), slurm::task(read)];
        let incomplete = found.iter().find_map(|found| found.as_ref().err().cloned());
        let [open_mpi, hydra, srun] = found.map(|found| found.ok().flatten());
        if let (Some(one), Some(other)) = (&open_mpi, &hydra) {
            one.check_equal(other)?;
        }
        if let (None, Some(task)) = (open_mpi.or(hydra), srun) {
            check_pmi(read, &task)?;
            return Ok(Some(task));
        }
        match (open_mpi.or(hydra), incomplete) {
            (Some(task), _) => Ok(Some(task)),
            (None, Some(error)) => Err(error),
            (None, None) => Ok(None),
        }
    }

    fn check_equal(&self, other: &Task) -> Result<(), TaskError> {
        let pairs = [(self.rank, other.rank), (self.size, other.size)];
        pairs.into_iter().try_for_each(|(one, other)| check_pair(one, other))
    }
}

/// `srun --mpi=pmi2` also sets Hydra's variables, without those of the node.
fn check_pmi(read: &Read<'_>, task: &Task) -> Result<(), TaskError> {
    for (own, name) in [(task.rank, HYDRA.rank), (task.size, HYDRA.size)] {
        if (read.variable)(name).is_some() {
            check_pair(own, number(read, task.starter, name)?)?;
        }
    }
    Ok(())
}

fn check_pair(one: Number, other: Number) -> Result<(), TaskError> {
    if one.value == other.value {
        return Ok(());
    }
    Err(TaskError::Contradiction { one: one.to_string(), other: other.to_string() })
}
