//! Finds the job and the task of this process: asks Slurm, PBS and MPI's launchers in turn.

use super::allocation::{Allocation, Read, Scheduler, Started};
use super::hosts::{self, HostFileError};
use super::task::{Number, Task, TaskError, number, read_task};
use super::{mpi, pbs, slurm};

impl Allocation {
    /// Finds the job in the environment. The nodes in a host file override those of the scheduler.
    ///
    /// # Errors
    /// The host file cannot be read, or is not a list of hosts.
    pub fn find(read: &Read<'_>, hostfile: Option<&str>) -> Result<Option<Allocation>, HostFileError> {
        // The user's list counts, whatever that of PBS is like.
        let variable = |name: &str| (read.variable)(name).filter(|_| hostfile.is_none() || name != "PBS_NODEFILE");
        let read = &Read { variable: &variable, file: read.file };
        let found = match slurm::find(read) {
            Some(found) => Some(found),
            None => pbs::find(read)?.or_else(|| mpi::find(read)),
        };
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
    /// start others itself, so MPI's numbers win over Slurm's, unless srun itself set them.
    ///
    /// # Errors
    /// The variables are incomplete, are not numbers, or contradict each other; or PMIx alone has numbered this process.
    pub fn find(read: &Read<'_>) -> Result<Option<Task>, TaskError> {
        let srun = slurm::task(read);
        if let (Ok(Some(task)), false) = (&srun, mpi::is_not_srun(read)) {
            check_pmi(read, task)?;
            return Ok(Some(*task));
        }
        let (found, errors): (Vec<_>, Vec<_>) =
            mpi::LAUNCHERS.iter().map(|names| read_task(read, names)).chain([srun]).partition(Result::is_ok);
        let found: Vec<Task> = found.into_iter().filter_map(Result::ok).flatten().collect();
        if let [first, others @ ..] = &found[..] {
            others.iter().filter(|other| other.starter != "srun").try_for_each(|other| first.check_equal(other))?;
            return Ok(Some(*first));
        }
        match (errors.into_iter().find_map(Result::err), mpi::pmix(read)) {
            (Some(error), _) => Err(error),
            (None, Some(rank)) => Err(TaskError::Uncounted { rank }),
            (None, None) => Ok(None),
        }
    }

    fn check_equal(&self, other: &Task) -> Result<(), TaskError> {
        let pairs = [(self.rank, other.rank), (self.size, other.size)];
        pairs.into_iter().try_for_each(|(one, other)| check_pair(one, other))
    }
}

/// `srun --mpi=pmi2` also sets PMI's variables.
fn check_pmi(read: &Read<'_>, task: &Task) -> Result<(), TaskError> {
    for (own, name) in [(task.rank, mpi::PMI_RANK), (task.size, mpi::PMI_SIZE)] {
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
