//! Slurm. In a step, which `srun` starts, the variables `SLURM_STEP_*` describe the step, with all parts of a
//! heterogeneous job. In the job's script they are not set, and the script runs only on the first node.

use super::hosts::expand;
use super::mpi;
use super::task::{Names, Task, TaskError, number, read_task};
use super::{Allocation, Read, Scheduler, Started};

/// A step's variables. The number of tasks on a node is one of a list: see [`tasks_of_node`].
const SRUN: Names = Names {
    starter: "srun",
    rank: "SLURM_PROCID",
    size: "SLURM_STEP_NUM_TASKS",
    local_rank: "SLURM_LOCALID",
    local_size: "SLURM_STEP_TASKS_PER_NODE",
    pass_on: "srun --export=ALL,MASTER_ADDR=HOST ...",
};

/// The largest id of a step that srun starts (`SLURM_MAX_NORMAL_STEP_ID`, slurm.h). Larger ones name the batch script, and the shell of
/// salloc, which runs on the first node alone.
const LAST_STEP: u32 = 0xffff_fff0;

/// The id of the step in which this process runs; `None` in a job's script, or in its shell.
fn step(read: &Read<'_>) -> Option<String> {
    let step = (read.variable)("SLURM_STEP_ID")?;
    step.trim().parse::<u32>().is_ok_and(|id| id <= LAST_STEP).then_some(step)
}

/// The task of a step that this process is. A job's script has a rank, too, but is in no step.
pub(super) fn task(read: &Read<'_>) -> Result<Option<Task>, TaskError> {
    if step(read).is_none() {
        return Ok(None);
    }
    let node = number(read, SRUN.starter, "SLURM_NODEID")?;
    let here = |list: String| match tasks_of_node(&list, node.value) {
        Some(tasks) => tasks.to_string(),
        None => format!("{list} without {node}"),
    };
    let variable = |name: &str| match (read.variable)(name) {
        Some(list) if name == SRUN.local_size => Some(here(list)),
        other => other,
    };
    let found = read_task(&Read { variable: &variable, file: read.file }, &SRUN)?;
    Ok(found.map(|task| Task { node: Some(node), ..task }))
}

/// The number of tasks on a node: the list `2(x3),1` is short for `2,2,2,1`.
fn tasks_of_node(list: &str, node: usize) -> Option<usize> {
    let mut first = 0usize;
    for part in list.split(',') {
        let (tasks, nodes) = match part.trim().split_once("(x") {
            Some((tasks, nodes)) => (tasks, nodes.strip_suffix(')')?.parse().ok()?),
            None => (part.trim(), 1usize),
        };
        first = first.saturating_add(nodes);
        if node < first {
            return tasks.parse().ok();
        }
    }
    None
}

pub(super) fn find(read: &Read<'_>) -> Option<Allocation> {
    let variable = read.variable;
    let id = variable("SLURM_JOB_ID")?;
    // mpirun starts its processes on other nodes through a step of its own, which has no task for the first node.
    if let Some(under_mpi) = mpi::find(read).filter(|_| mpi::is_not_srun(read)) {
        return Some(Allocation { scheduler: Scheduler::Slurm, id, hosts: whole_job(read).hosts, ..under_mpi });
    }
    match step(read) {
        Some(step) => Some(Allocation {
            id: format!("{id}.{step}"),
            started: in_step(read),
            ..with_nodes(read, "SLURM_STEP_NUM_NODES", "SLURM_STEP_NODELIST")
        }),
        None => Some(Allocation { id, started: Started::ByTheScript, ..whole_job(read) }),
    }
}

fn in_step(read: &Read<'_>) -> Started {
    let number = |name: &str| (read.variable)(name).and_then(|text| text.parse::<usize>().ok());
    match (number("SLURM_STEP_NUM_TASKS"), number("SLURM_STEP_NUM_NODES")) {
        (Some(agents), Some(nodes)) if agents > nodes => {
            let layout = (read.variable)("SLURM_STEP_TASKS_PER_NODE").unwrap_or_default();
            Started::SeveralTimes { agents, variable: format!("SLURM_STEP_TASKS_PER_NODE={layout}") }
        }
        _ => Started::OnEachNode { node: number("SLURM_NODEID").map(|node| (node, "SLURM_NODEID")) },
    }
}

/// The nodes of the job, of all its parts if it is heterogeneous.
fn whole_job(read: &Read<'_>) -> Allocation {
    let parts = (read.variable)("SLURM_HET_SIZE").and_then(|size| size.parse::<usize>().ok());
    let Some(parts) = parts.filter(|parts| (2..=128).contains(parts)) else {
        return with_nodes(read, "SLURM_JOB_NUM_NODES", "SLURM_JOB_NODELIST");
    };
    let lists = (0..parts).filter_map(|part| (read.variable)(&format!("SLURM_JOB_NODELIST_HET_GROUP_{part}")));
    let hosts: Vec<String> = lists.flat_map(|list| expand(&list)).collect();
    let from = "SLURM_JOB_NODELIST_HET_GROUP_*".to_owned();
    Allocation { nodes: (hosts.len(), from.clone()), hosts: Some((hosts, from)), ..empty() }
}

fn with_nodes(read: &Read<'_>, count: &str, list: &str) -> Allocation {
    let of = |name: &str| (read.variable)(name).map(|value| (format!("{name}={value}"), value));
    let hosts = of(list).map(|(from, value)| (expand(&value), from));
    let counted = of(count).and_then(|(from, value)| Some((value.parse().ok()?, from)));
    let listed = || hosts.as_ref().map(|(hosts, from)| (hosts.len(), from.clone()));
    let nodes = counted.or_else(listed).unwrap_or((1, "SLURM_JOB_ID".to_owned()));
    Allocation { nodes, hosts, ..empty() }
}

fn empty() -> Allocation {
    Allocation {
        scheduler: Scheduler::Slurm,
        id: String::new(),
        nodes: (1, String::new()),
        hosts: None,
        started: Started::ByTheScript,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::testing::find;

    /// What `srun` sets on the second of three nodes (Slurm 22.05).
    const STEP: [(&str, &str); 9] = [
        ("SLURM_JOB_ID", "17"),
        ("SLURM_JOB_NUM_NODES", "4"),
        ("SLURM_JOB_NODELIST", "n[1-4]"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_STEP_NUM_NODES", "3"),
        ("SLURM_STEP_NODELIST", "n[1-3]"),
        ("SLURM_STEP_NUM_TASKS", "3"),
        ("SLURM_STEP_TASKS_PER_NODE", "1(x3)"),
        ("SLURM_NODEID", "1"),
    ];

    fn with(changes: &[(&'static str, &'static str)]) -> Allocation {
        let kept = STEP.iter().filter(|(name, _)| changes.iter().all(|(changed, _)| changed != name));
        let variables: Vec<_> = kept.chain(changes).filter(|(_, value)| !value.is_empty()).copied().collect();
        find(&variables, &[], None).unwrap()
    }

    #[test]
    fn reads_a_step() {
        let job = with(&[]);
        assert_eq!((job.id.as_str(), job.name().as_str()), ("17.0", "SLURM_JOB_ID=17"));
        assert_eq!(job.nodes, (3, "SLURM_STEP_NUM_NODES=3".to_owned()));
        assert_eq!(job.host_names(), ["n1", "n2", "n3"]);
        assert_eq!(job.started, Started::OnEachNode { node: Some((1, "SLURM_NODEID")) });
    }

    #[test]
    fn recognizes_several_tasks_on_a_node() {
        let job = with(&[("SLURM_STEP_NUM_TASKS", "12"), ("SLURM_STEP_TASKS_PER_NODE", "4(x3)")]);
        let variable = "SLURM_STEP_TASKS_PER_NODE=4(x3)".to_owned();
        assert_eq!(job.started, Started::SeveralTimes { agents: 12, variable });
    }

    #[test]
    fn recognizes_the_jobs_script_by_the_missing_step() {
        let job = with(&[("SLURM_STEP_ID", "")]);
        assert_eq!((job.started, job.nodes.0, job.id.as_str()), (Started::ByTheScript, 4, "17"));
        assert_eq!(
            with(&[("SLURM_STEP_ID", "")]).one_agent_per_node(),
            "srun --nodes=4 --ntasks-per-node=1 lockstep run ..."
        );
    }

    #[test]
    fn the_shell_of_salloc_is_in_no_step() {
        for special in ["4294967290", "4294967291", "interactive"] {
            let job = with(&[("SLURM_STEP_ID", special)]);
            assert_eq!((job.started, job.id.as_str()), (Started::ByTheScript, "17"), "{special}");
        }
    }

    #[test]
    fn counts_the_tasks_of_each_node() {
        let counts = |list: &str| (0..4).map(|node| tasks_of_node(list, node)).collect::<Vec<_>>();
        assert_eq!(counts("2(x3),1"), [Some(2), Some(2), Some(2), Some(1)]);
        assert_eq!(counts("1,3"), [Some(1), Some(3), None, None]);
        assert_eq!(counts("4(x2)"), [Some(4), Some(4), None, None]);
        assert_eq!([counts("")[0], counts("x")[0], counts("2(x")[0], counts("2(x-1)")[0]], [None; 4]);
    }

    #[test]
    fn joins_the_parts_of_a_heterogeneous_job() {
        let parts = [
            ("SLURM_STEP_ID", ""),
            ("SLURM_HET_SIZE", "2"),
            ("SLURM_JOB_NODELIST", "n1"),
            ("SLURM_JOB_NODELIST_HET_GROUP_0", "n1"),
            ("SLURM_JOB_NODELIST_HET_GROUP_1", "n[2-3]"),
        ];
        let job = with(&parts);
        assert_eq!((job.nodes.0, job.host_names()), (3, &["n1".to_owned(), "n2".to_owned(), "n3".to_owned()][..]));
    }

    #[test]
    fn uses_mpiruns_numbers_if_it_started_the_agents() {
        let mpi = [("OMPI_COMM_WORLD_SIZE", "4"), ("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "1")];
        let on_first: Vec<_> = [("SLURM_STEP_ID", "")].iter().chain(&mpi).copied().collect();
        let job = with(&on_first);
        assert_eq!(job.started, Started::OnEachNode { node: Some((0, "OMPI_COMM_WORLD_RANK")) });
        assert_eq!((job.nodes.0, job.host_names().len(), job.id.as_str()), (4, 4, "17"));
        let pmi2 = with(&[("PMI_SIZE", "3"), ("PMI_RANK", "1")]);
        assert_eq!(pmi2.started, Started::OnEachNode { node: Some((1, "SLURM_NODEID")) });
    }

    #[test]
    fn counts_the_hosts_if_their_number_is_missing() {
        let job = with(&[("SLURM_STEP_NUM_NODES", ""), ("SLURM_STEP_NUM_TASKS", "")]);
        assert_eq!(job.nodes, (3, "SLURM_STEP_NODELIST=n[1-3]".to_owned()));
    }
}
