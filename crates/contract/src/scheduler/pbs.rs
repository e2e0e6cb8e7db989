//! PBS Pro, OpenPBS and Torque. `PBS_NODEFILE` names a file with a line for each slot, which exists on the first node,
//! where the job's script runs. Tasks that `pbsdsh` starts get PBS's own variables and none that the script exported, so
//! other nodes need `--hostfile` for the list.

use super::allocation::{Allocation, Read, Scheduler, Started};
use super::hosts::{self, HostFileError};
use super::mpi;

/// # Errors
/// The node file is there, and is not a list of hosts, or names one host in several ways.
pub(super) fn find(read: &Read<'_>) -> Result<Option<Allocation>, HostFileError> {
    let Some(id) = (read.variable)("PBS_JOBID") else { return Ok(None) };
    let file = (read.variable)("PBS_NODEFILE").and_then(|path| Some(((read.file)(&path).ok()?, path)));
    let hosts = file.map(|(text, path)| Ok((hosts::read_file(&path, &text)?, format!("PBS_NODEFILE={path}"))));
    let hosts: Option<(Vec<String>, String)> = hosts.transpose()?;
    let counted = hosts.as_ref().map(|(hosts, from)| (hosts.len(), from.clone()));
    // If MPI's launcher started this agent, it knows the number of agents.
    let under_mpi = mpi::find(read);
    let nodes = under_mpi.as_ref().map(|job| job.nodes.clone()).or(counted);
    let started = under_mpi.map_or_else(|| started(read), |job| job.started);
    let nodes = nodes.unwrap_or((1, "PBS_JOBID".to_owned()));
    Ok(Some(Allocation { scheduler: Scheduler::Pbs, id, nodes, hosts, started }))
}

/// The script is task 1 of a batch job; `pbsdsh` numbers the tasks that it starts from 2.
fn started(read: &Read<'_>) -> Started {
    let is = |name: &str, value: &str| (read.variable)(name).as_deref() == Some(value);
    if is("PBS_ENVIRONMENT", "PBS_BATCH") && is("PBS_TASKNUM", "1") {
        return Started::ByTheScript;
    }
    let node = (read.variable)("PBS_NODENUM").and_then(|node| node.parse().ok());
    Started::OnEachNode { node: node.map(|node| (node, "PBS_NODENUM")) }
}

#[cfg(test)]
mod tests {
    use super::super::allocation::testing::{find, try_find};
    use super::*;

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
