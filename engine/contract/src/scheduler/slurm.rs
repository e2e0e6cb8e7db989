//! Slurm. In a step, which `srun` starts, the variables `SLURM_STEP_*` describe the step, with all parts of a
//! heterogeneous job. In the job's script they are not set, and the script runs only on the first node.
//!
//! Lists of hosts: Slurm's short form, and files with one host per line.
//!
//! MPI's launchers: the variables in which they number their processes. They do not name their nodes. A process is a training program
//! that is a rank, see [`super::task`], or an agent, if one was started on each node.
//!
//! The variables are those of Open MPI (prrte's `schizo_ompi.c`), MVAPICH2 (`mpispawn.c`), jsrun (IBM's "jsrun", environment variables),
//! Hydra (MPICH's `pmip_cb.c`), PALS (HPE's mpiexec(1)) and PMI as Cray's library has it (intro_pmi(3)).
//!
//! prterun by itself sets only PMIx's variables (`PMIx_server_setup_fork`): `PMIX_NAMESPACE` names the job and `PMIX_RANK` numbers the
//! process. No variable gives the number of processes, in all or on a node; a program has to ask PMIx's server for it.

use std::collections::BTreeSet;
use std::net::Ipv6Addr;
use std::path::PathBuf;

use super::task::{Names, Task, TaskError, number, read_task};
use super::{Allocation, Read, Scheduler, Started};
use crate::foreign;

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
    if let Some(under_mpi) = find_mpi(read).filter(|_| is_not_srun(read)) {
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

/// Longer lists are truncated. The largest Slurm clusters have about 10,000 nodes.
const MAX_HOSTS: usize = 16_384;

/// Why a file is not a list of hosts.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostFileError {
    /// The file cannot be read.
    #[error("cannot read the host file {}: {source}", foreign::path(path))]
    Unreadable { path: PathBuf, source: std::io::Error },
    /// A word of a line is not a host, or can be read in two ways.
    #[error("{}, line {line}: `{}` {why}", foreign::path(path), foreign::quotation(text))]
    NotAHost {
        path: PathBuf,
        /// The line's number, counted from 1.
        line: usize,
        text: String,
        /// What is wrong with the word, and what is expected.
        why: String,
    },
    /// Different lines name the same host.
    #[error(
        "the host file {} has {lines} different lines, and all of them name the host {host}, so each agent would train alone: name each \
         node by a name of its own, or one node in one line",
        foreign::path(path)
    )]
    OneHost {
        path: PathBuf,
        /// The number of these lines.
        lines: usize,
        host: String,
    },
    /// The file names no host.
    #[error("the host file {} names no host", foreign::path(path))]
    Empty { path: PathBuf },
}

/// Expands Slurm's short form of a list of hosts: `gpu[01-03,07],login`, also with several brackets (`r[1-2]n[0-3]`).
/// Parts that cannot be parsed are kept unchanged.
#[must_use]
pub fn expand(list: &str) -> Vec<String> {
    let mut hosts = Vec::new();
    for part in split(list) {
        match expand_part(part) {
            Some(expanded) => hosts.extend(expanded),
            None => hosts.push(part.to_owned()),
        }
        hosts.truncate(MAX_HOSTS);
    }
    hosts
}

/// Splits at commas outside of brackets.
fn split(list: &str) -> Vec<&str> {
    let mut depth = 0usize;
    let parts = list.split(|c| {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    });
    parts.map(str::trim).filter(|part| !part.is_empty()).collect()
}

fn expand_part(part: &str) -> Option<Vec<String>> {
    let Some((head, rest)) = part.split_once('[') else { return Some(vec![part.to_owned()]) };
    let (inside, tail) = rest.split_once(']')?;
    let tails = expand_part(tail)?;
    let mut hosts = Vec::new();
    for range in inside.split(',') {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (from.parse::<usize>().ok()?, to.parse::<usize>().ok()?);
        let width = from.len();
        let wanted = MAX_HOSTS.saturating_sub(hosts.len());
        let numbers = (first..=last).flat_map(|number| tails.iter().map(move |tail| (number, tail)));
        hosts.extend(numbers.take(wanted).map(|(number, tail)| format!("{head}{number:0width$}{tail}")));
    }
    Some(hosts)
}

/// Reads a host file: one host per line, each host once or once per slot; also `node1 slots=4` (Open MPI), `node1:4`
/// (MPICH), Grid Engine's four columns, IPv6 addresses, in brackets where a number of slots follows, and comments after `#`.
pub(super) fn read_file(path: &str, text: &str) -> Result<Vec<String>, HostFileError> {
    let (mut hosts, mut written) = (Vec::new(), BTreeSet::new());
    for (number, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        let (first, host) = match read_line(line) {
            Ok(Some(read)) => read,
            Ok(None) => continue,
            Err((text, why)) => {
                let (path, text) = (path.into(), text.to_owned());
                return Err(HostFileError::NotAHost { path, line: number + 1, text, why });
            }
        };
        written.insert(first);
        if hosts.len() < MAX_HOSTS && !hosts.contains(&host) {
            hosts.push(host);
        }
    }
    let (path, lines) = (path.into(), written.len());
    match &*hosts {
        [] => Err(HostFileError::Empty { path }),
        [host] if lines > 1 => Err(HostFileError::OneHost { path, lines, host: host.clone() }),
        _ => Ok(hosts),
    }
}

/// A word that cannot be used, and why not.
type Misread<'a> = (&'a str, String);

/// The first word of a line and the host that it names; `None` if the line is empty.
fn read_line(line: &str) -> Result<Option<(&str, String)>, Misread<'_>> {
    let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
    let Some(first) = words.next() else { return Ok(None) };
    let host = read_host(first).map_err(|why| (first, why))?;
    // `slots=4`, `max_slots = 4`, `4 all.q@node1 UNDEFINED`. A second host would be lost.
    let describes = |word: &str| word.contains(['=', '@']) || is_number(word) || DESCRIBE.contains(&word);
    match words.find(|word| !describes(word)) {
        Some(word) => Err((word, NOT_A_HOST.to_owned())),
        None => Ok(Some((first, host))),
    }
}

/// Words that may follow a host: Open MPI's, and Grid Engine's for any processors.
const DESCRIBE: [&str; 3] = ["slots", "max_slots", "UNDEFINED"];

const NOT_A_HOST: &str = "is not a host; expected a host on each line, such as `node1` or `node1 slots=4`";

/// `node1`, `node1:4`, `2001:db8::1`, `[2001:db8::1]` or `[2001:db8::1]:4`. One address has one form.
fn read_host(word: &str) -> Result<String, String> {
    let address = |text: &str| text.parse::<Ipv6Addr>().ok().map(|address| address.to_string());
    if let Some((inside, rest)) = word.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        let ends = rest.is_empty() || rest.strip_prefix(':').is_some_and(is_number);
        return address(inside).filter(|_| ends).ok_or_else(|| NOT_A_HOST.to_owned());
    }
    let (before, after) = word.rsplit_once(':').unwrap_or((word, "1"));
    match address(word) {
        Some(_) if address(before).is_some() && is_number(after) => {
            Err(format!("can be an IPv6 address or one with a number of slots: write [{word}] or [{before}]:{after}"))
        }
        Some(host) => Ok(host),
        None => {
            let is_name = !before.is_empty() && before.chars().all(|c| c.is_alphanumeric() || "-_.".contains(c));
            if is_name && is_number(after) { Ok(before.to_owned()) } else { Err(NOT_A_HOST.to_owned()) }
        }
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// All launchers, in the order in which they are tried, since some share variables.
pub(super) const LAUNCHERS: [Names; 6] = [
    // Also prterun with --personality ompi, and Spectrum MPI.
    Names {
        starter: "mpirun (Open MPI)",
        rank: "OMPI_COMM_WORLD_RANK",
        size: "OMPI_COMM_WORLD_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        local_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
        pass_on: "mpirun -x MASTER_ADDR=HOST ...",
    },
    Names {
        starter: "mpirun_rsh (MVAPICH2)",
        rank: "MV2_COMM_WORLD_RANK",
        size: "MV2_COMM_WORLD_SIZE",
        local_rank: "MV2_COMM_WORLD_LOCAL_RANK",
        local_size: "MV2_COMM_WORLD_LOCAL_SIZE",
        pass_on: "mpirun_rsh -np N -hostfile FILE MASTER_ADDR=HOST ...",
    },
    Names {
        starter: "jsrun",
        rank: "JSM_NAMESPACE_RANK",
        size: "JSM_NAMESPACE_SIZE",
        local_rank: "JSM_NAMESPACE_LOCAL_RANK",
        local_size: "JSM_NAMESPACE_LOCAL_SIZE",
        pass_on: "jsrun -E MASTER_ADDR=HOST ...",
    },
    // The mpiexec of MPICH and Intel MPI.
    Names {
        starter: "mpiexec (Hydra)",
        rank: PMI_RANK,
        size: PMI_SIZE,
        local_rank: "MPI_LOCALRANKID",
        local_size: "MPI_LOCALNRANKS",
        pass_on: "mpiexec -genv MASTER_ADDR HOST ...",
    },
    Names {
        starter: "mpiexec (PALS)",
        rank: PMI_RANK,
        size: PMI_SIZE,
        local_rank: "PALS_LOCAL_RANKID",
        local_size: "PALS_LOCAL_SIZE",
        pass_on: "mpiexec --env MASTER_ADDR=HOST ...",
    },
    Names {
        starter: "a launcher that speaks PMI",
        rank: PMI_RANK,
        size: PMI_SIZE,
        local_rank: "PMI_LOCAL_RANK",
        local_size: "PMI_LOCAL_SIZE",
        pass_on: "mpiexec --env MASTER_ADDR=HOST ...",
    },
];

/// PMI's number of a process, which `srun --mpi=pmi2` sets, too.
pub(super) const PMI_RANK: &str = "PMI_RANK";
/// PMI's number of all processes.
pub(super) const PMI_SIZE: &str = "PMI_SIZE";

/// The variables in which MPI's launchers pass the number of all processes.
pub fn size_variables() -> impl Iterator<Item = &'static str> {
    LAUNCHERS.iter().map(|launcher| launcher.size)
}

pub(super) fn find_mpi(read: &Read<'_>) -> Option<Allocation> {
    let number = |name: &str| (read.variable)(name).and_then(|text| text.parse::<usize>().ok());
    let numbered = |names: &&Names| number(names.rank).zip(number(names.size)).is_some();
    let Names { rank, size, .. } = LAUNCHERS.iter().find(numbered)?;
    let (node, agents) = (number(rank)?, number(size)?);
    let of_this = LAUNCHERS.iter().filter(|names| names.rank == *rank).map(|names| names.local_size);
    let started = match of_this.into_iter().find_map(|name| Some((name, number(name)?))) {
        Some((name, here)) if here > 1 => Started::SeveralTimes { agents, variable: format!("{name}={here}") },
        _ => Started::OnEachNode { node: Some((node, rank)) },
    };
    let nodes = (agents, format!("{size}={agents}"));
    Some(Allocation { scheduler: Scheduler::Mpi, id: String::new(), nodes, hosts: None, started })
}

/// Returns true if MPI's own launcher started this process. srun sets PMI's variables, too, but none of these.
pub(super) fn is_not_srun(read: &Read<'_>) -> bool {
    let own = LAUNCHERS.iter().flat_map(|names| [names.size, names.local_size]);
    own.into_iter().filter(|name| !name.starts_with("PMI_")).any(|name| (read.variable)(name).is_some())
}

/// PMIx's variables, if they alone number this process.
pub(super) fn pmix(read: &Read<'_>) -> Option<String> {
    let set = |name: &str| (read.variable)(name).filter(|value| !value.trim().is_empty());
    let (rank, _) = (set("PMIX_RANK")?, set("PMIX_NAMESPACE")?);
    Some(format!("PMIX_RANK={rank}"))
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

    #[test]
    fn expands_host_lists_and_keeps_what_it_cannot_read() {
        assert_eq!(expand("gpu[09-10],login"), ["gpu09", "gpu10", "login"]);
        assert_eq!(expand("a[1-2,5]x, b"), ["a1x", "a2x", "a5x", "b"]);
        assert_eq!(expand("r[1-2]n[08-09]"), ["r1n08", "r1n09", "r2n08", "r2n09"]);
        assert_eq!(expand("a[1-"), ["a[1-"]);
        assert_eq!(expand("a[x-y]"), ["a[x-y]"]);
        assert_eq!(expand("]],["), ["]]", "["]);
        assert_eq!(expand("a[0-99999999999]").len(), MAX_HOSTS);
        assert_eq!(expand(""), [""; 0]);
    }

    #[test]
    fn reads_host_files_of_all_kinds() {
        let read = |text| read_file("hosts", text);
        assert_eq!(read("x1\nx1\nx2\n\n").unwrap(), ["x1", "x2"]);
        assert_eq!(read("# two nodes\nn1 slots=4 # fast\n n2:4\n").unwrap(), ["n1", "n2"]);
        assert_eq!(read("\n# none\n").unwrap_err().to_string(), "the host file hosts names no host");
        assert_eq!(read("\u{feff}n1 slots = 4 max_slots=8\r\nn2 4\r\n").unwrap(), ["n1", "n2"]);
        let error = read("n1\nuser@n2\n").unwrap_err().to_string();
        assert!(error.starts_with("hosts, line 2: `user@n2` is not a host; expected"), "{error}");
        assert_eq!(read("n1 4 all.q@n1 UNDEFINED\nn2 4 all.q@n2  UNDEFINED\n").unwrap(), ["n1", "n2"]);
        for (text, word) in [("n1 n2\n", "n2"), ("n1,n2\n", "n1,n2"), ("n1:x\n", "n1:x"), ("[n1]\n", "[n1]")] {
            assert!(read(text).unwrap_err().to_string().contains(&format!("`{word}` is not a host")), "{text}");
        }
    }

    #[test]
    fn reads_ipv6_addresses_and_refuses_what_may_be_one_with_slots() {
        let read = |text| read_file("hosts", text);
        assert_eq!(read("2001:db8::1\n2001:db8::2\n").unwrap(), ["2001:db8::1", "2001:db8::2"]);
        assert_eq!(read("[2001:db8::1]\n[2001:db8::2]:4\n").unwrap(), ["2001:db8::1", "2001:db8::2"]);
        assert_eq!(read("fd00:1:2:3:4:5:6:7 slots=2\nfd00::a:b\n").unwrap(), ["fd00:1:2:3:4:5:6:7", "fd00::a:b"]);
        assert_eq!(
            read("n1\nfd00::1:4\n").unwrap_err().to_string(),
            "hosts, line 2: `fd00::1:4` can be an IPv6 address or one with a number of slots: write [fd00::1:4] or [fd00::1]:4"
        );
    }

    #[test]
    fn one_host_in_lines_that_differ_is_a_mistake() {
        assert_eq!(read_file("hosts", "n1\nn1\n").unwrap(), ["n1"]);
        assert!(
            read_file("hosts", "fd00::1\n[fd00:0::1]\n").unwrap_err().to_string().contains("name the host fd00::1,")
        );
        assert_eq!(
            read_file("hosts", "n1:2\nn1:4\n").unwrap_err().to_string(),
            "the host file hosts has 2 different lines, and all of them name the host n1, so each agent would train alone: name \
             each node by a name of its own, or one node in one line"
        );
    }

    #[test]
    fn reads_open_mpi_and_hydra() {
        let open_mpi =
            [("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "1")];
        let job = find(&open_mpi, &[], None).unwrap();
        assert_eq!(job.nodes, (2, "OMPI_COMM_WORLD_SIZE=2".to_owned()));
        assert_eq!(job.started, Started::OnEachNode { node: Some((1, "OMPI_COMM_WORLD_RANK")) });
        let hydra = [("PMI_SIZE", "4"), ("PMI_RANK", "0"), ("MPI_LOCALNRANKS", "2")];
        let started = find(&hydra, &[], None).unwrap().started;
        assert_eq!(started, Started::SeveralTimes { agents: 4, variable: "MPI_LOCALNRANKS=2".to_owned() });
        assert_eq!(find(&[("PMI_RANK", "0")], &[], None), None);
    }

    #[test]
    fn counts_the_agents_on_a_node_by_each_launchers_variable() {
        for (prefix, local) in [
            ("OMPI_COMM_WORLD", "OMPI_COMM_WORLD_LOCAL_SIZE"),
            ("MV2_COMM_WORLD", "MV2_COMM_WORLD_LOCAL_SIZE"),
            ("JSM_NAMESPACE", "JSM_NAMESPACE_LOCAL_SIZE"),
            ("PMI", "MPI_LOCALNRANKS"),
            ("PMI", "PALS_LOCAL_SIZE"),
            ("PMI", "PMI_LOCAL_SIZE"),
        ] {
            let (rank, size) = (format!("{prefix}_RANK"), format!("{prefix}_SIZE"));
            let started = |here| find(&[(&rank, "1"), (&size, "8"), (local, here)], &[], None).unwrap().started;
            let several = Started::SeveralTimes { agents: 8, variable: format!("{local}=4") };
            assert_eq!((started("4"), matches!(started("1"), Started::OnEachNode { .. })), (several, true), "{local}");
        }
    }
}
