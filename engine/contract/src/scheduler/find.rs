//! Finds the job and the task of this process: asks Slurm, PBS and MPI's launchers in turn. Those of PBS are read here.

use super::hosts::{self, HostFileError};
use super::task::{Number, Task, TaskError, number, read_task};
use super::{Allocation, Read, Scheduler, Started, mpi, slurm};

impl Allocation {
    /// Finds the job in the environment. The nodes in a host file override those of the scheduler.
    ///
    /// # Errors
    /// The host file cannot be read, or is not a list of hosts.
    pub fn find(read: &Read<'_>, hostfile: Option<&str>) -> Result<Option<Allocation>, HostFileError> {
        // The user's list replaces that of PBS, which is then not read.
        let variable = |name: &str| (read.variable)(name).filter(|_| hostfile.is_none() || name != "PBS_NODEFILE");
        let read = &Read { variable: &variable, file: read.file };
        let found = match slurm::find(read) {
            Some(found) => Some(found),
            None => find_pbs(read)?.or_else(|| mpi::find(read)),
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

/// The job of PBS Pro, OpenPBS or Torque. `PBS_NODEFILE` names a file with a line for each slot, which exists on the first node,
/// where the job's script runs. Tasks that `pbsdsh` starts get PBS's own variables and none that the script exported, so
/// other nodes need `--hostfile` for the list.
///
/// # Errors
/// The node file is there, and is not a list of hosts, or names one host in several ways.
fn find_pbs(read: &Read<'_>) -> Result<Option<Allocation>, HostFileError> {
    let Some(id) = (read.variable)("PBS_JOBID") else { return Ok(None) };
    let file = (read.variable)("PBS_NODEFILE").and_then(|path| Some(((read.file)(&path).ok()?, path)));
    let hosts = file.map(|(text, path)| Ok((hosts::read_file(&path, &text)?, format!("PBS_NODEFILE={path}"))));
    let hosts: Option<(Vec<String>, String)> = hosts.transpose()?;
    let counted = hosts.as_ref().map(|(hosts, from)| (hosts.len(), from.clone()));
    // If MPI's launcher started this agent, it knows the number of agents.
    let under_mpi = mpi::find(read);
    let nodes = under_mpi.as_ref().map(|job| job.nodes.clone()).or(counted);
    let started = under_mpi.map_or_else(|| started_by_pbs(read), |job| job.started);
    let nodes = nodes.unwrap_or((1, "PBS_JOBID".to_owned()));
    Ok(Some(Allocation { scheduler: Scheduler::Pbs, id, nodes, hosts, started }))
}

/// The script is task 1 of a batch job; `pbsdsh` numbers the tasks that it starts from 2.
fn started_by_pbs(read: &Read<'_>) -> Started {
    let is = |name: &str, value: &str| (read.variable)(name).as_deref() == Some(value);
    if is("PBS_ENVIRONMENT", "PBS_BATCH") && is("PBS_TASKNUM", "1") {
        return Started::ByTheScript;
    }
    let node = (read.variable)("PBS_NODENUM").and_then(|node| node.parse().ok());
    Started::OnEachNode { node: node.map(|node| (node, "PBS_NODENUM")) }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{find, try_find};
    use super::*;

    #[test]
    fn finds_no_job_without_a_scheduler() {
        assert_eq!(find(&[("HOME", "/")], &[], None), None);
    }

    #[test]
    fn a_host_file_names_the_nodes_with_and_without_a_scheduler() {
        let files = [("/shared/hosts", "n1\nn2\n")];
        let job = find(&[], &files, Some("/shared/hosts")).unwrap();
        assert_eq!((job.scheduler, job.nodes.0), (Scheduler::HostFile, 2));
        let pbs = [("PBS_JOBID", "5.head"), ("PBS_ENVIRONMENT", "PBS_BATCH"), ("PBS_TASKNUM", "1")];
        let job = find(&pbs, &files, Some("/shared/hosts")).unwrap();
        assert_eq!((job.scheduler, job.started), (Scheduler::Pbs, Started::OnEachNode { node: None }));
        let error = try_find(&[], &[], Some("/none")).unwrap_err().to_string();
        assert!(error.starts_with("cannot read the host file /none: "), "{error}");
    }

    const SCRIPT: [(&str, &str); 4] =
        [("PBS_JOBID", "5.head"), ("PBS_NODEFILE", "/nodes"), ("PBS_ENVIRONMENT", "PBS_BATCH"), ("PBS_TASKNUM", "1")];

    #[test]
    fn reads_the_node_file_where_a_host_has_a_line_for_each_slot() {
        let job = find(&SCRIPT, &[("/nodes", "x1\nx1\nx2\n\n")], None).unwrap();
        assert_eq!((job.nodes.0, job.name().as_str()), (2, "PBS_JOBID=5.head"));
        assert_eq!(job.host_names(), ["x1", "x2"]);
        assert_eq!(job.started, Started::ByTheScript);
    }

    #[test]
    fn refuses_a_node_file_that_names_one_host_in_several_ways() {
        let error = try_find(&SCRIPT, &[("/nodes", "x1\nx1:2\n")], None).unwrap_err().to_string();
        assert!(error.contains("/nodes has 2 different lines, and all of them name the host x1"), "{error}");
        assert!(try_find(&SCRIPT, &[("/nodes", "x1\nuser@x2\n")], None).is_err());
        assert_eq!(find(&SCRIPT, &[], None).unwrap().hosts, None, "other nodes do not have the file");
    }

    #[test]
    fn recognizes_an_agent_that_pbsdsh_started() {
        let task =
            [("PBS_JOBID", "5.head"), ("PBS_ENVIRONMENT", "PBS_BATCH"), ("PBS_TASKNUM", "3"), ("PBS_NODENUM", "1")];
        let job = find(&task, &[("/shared/hosts", "x1\nx2\n")], Some("/shared/hosts")).unwrap();
        assert_eq!(job.started, Started::OnEachNode { node: Some((1, "PBS_NODENUM")) });
        assert_eq!(job.nodes, (2, "--hostfile=/shared/hosts".to_owned()));
    }

    #[test]
    fn recognizes_an_agent_that_mpiexec_started_in_a_job() {
        let mpi = [("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("MPI_LOCALNRANKS", "1")];
        let variables: Vec<_> = SCRIPT.iter().chain(&mpi).copied().collect();
        let job = find(&variables, &[("/nodes", "x1\nx2\n")], None).unwrap();
        assert_eq!(job.started, Started::OnEachNode { node: Some((1, "PMI_RANK")) });
    }
}
