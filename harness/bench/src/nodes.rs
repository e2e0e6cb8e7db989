//! The nodes of a Slurm job, over which `bench scaling` starts its ranks: their cores, and whether they are machines of their own. And where
//! a measure belongs in the tables of scaling.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::ValueEnum;
use lockstep_contract::scheduler::{Allocation, Scheduler, Started};
use lockstep_process::{Process, dying_with_parent};
use serde::{Deserialize, Serialize};

use crate::exit::Refused;
use crate::launcher::{Launcher, srun};
use crate::report::count;

/// A line of each node: its name, the id of the running kernel (random(4)), and the cores that a task of the job may use.
const ASK: &str = "echo $SLURMD_NODENAME $(cat /proc/sys/kernel/random/boot_id) $(nproc)";

/// The nodes of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Nodes(Vec<Node>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    host: String,
    /// Two nodes with the same kernel are one machine.
    kernel: String,
    cores: usize,
}

/// The first nodes of a job, as results keep them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct NodeSpan {
    pub(crate) nodes: usize,
    /// The number of machines: fewer than nodes if several are namespaces or containers of one machine.
    pub(crate) machines: usize,
    /// The cores of these machines.
    pub(crate) cores: usize,
}

impl Nodes {
    /// The nodes of the Slurm job in whose script this runs; `None` outside, and in a job of one node.
    pub(crate) fn of_job(job: Option<&Allocation>, patience: Duration) -> anyhow::Result<Option<Self>> {
        let Some(job) = job.filter(|job| job.scheduler == Scheduler::Slurm && job.nodes.0 > 1) else {
            return Ok(None);
        };
        if job.started != Started::ByTheScript {
            let once = "run it once, in the job's script or in the shell of salloc: it starts its ranks by srun";
            return Err(Refused(format!("{}: srun has started this bench on each node; {once}", job.title())).into());
        }
        ensure!(!job.host_names().is_empty(), "{}: the names of its nodes are not known", job.title());
        let printed =
            asked(job.host_names(), patience).with_context(|| format!("{}: cannot ask its nodes", job.title()))?;
        Ok(Some(Self::parse(job.host_names(), &printed)?))
    }

    fn parse(hosts: &[String], printed: &str) -> anyhow::Result<Self> {
        let mut found = BTreeMap::new();
        for line in printed.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [host, kernel, cores] = words[..] else { continue };
            let Ok(cores) = cores.parse() else { continue };
            found.insert(host, Node { host: host.to_owned(), kernel: kernel.to_owned(), cores });
        }
        let node =
            |host: &String| found.get(&**host).cloned().with_context(|| format!("no answer from {host}: {printed:?}"));
        Ok(Nodes(hosts.iter().map(node).collect::<anyhow::Result<_>>()?))
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// The first `nodes` nodes.
    pub(crate) fn span(&self, nodes: usize) -> NodeSpan {
        let machines: BTreeMap<&str, usize> = self.0[..nodes].iter().map(|node| (&*node.kernel, node.cores)).collect();
        NodeSpan { nodes, machines: machines.len(), cores: machines.values().sum() }
    }

    /// Starts agents on the first `nodes` nodes.
    pub(crate) fn launcher(&self, nodes: usize) -> anyhow::Result<Launcher> {
        let hosts: Vec<String> = self.0[..nodes].iter().map(|node| node.host.clone()).collect();
        Launcher::by_srun(&hosts).context("cannot find this program's own path")
    }
}

impl NodeSpan {
    /// Why a case with nodes that share a machine is not a scaling result.
    pub(crate) fn labels(&self) -> Vec<String> {
        let shared =
            format!("{} on {}: not a scaling result", count(self.nodes, "node"), count(self.machines, "machine"));
        if self.share() { vec![shared] } else { vec![] }
    }

    pub(crate) fn share(&self) -> bool {
        self.machines < self.nodes
    }
}

/// The numbers of nodes to measure, in ascending order, each once: those that were asked for, or 1, 2, 4, … and all.
pub(crate) fn numbers(asked: &[u16], all: Option<usize>) -> Result<Vec<usize>, Refused> {
    let Some(all) = all else {
        let none = "--nodes needs a Slurm job of several nodes: run the bench in its script, or in the shell of salloc";
        return if asked.is_empty() { Ok(vec![1]) } else { Err(Refused(none.to_owned())) };
    };
    let doubled = std::iter::successors(Some(1), |nodes| Some(2 * nodes)).take_while(|nodes| *nodes < all).chain([all]);
    let asked: BTreeSet<usize> = asked.iter().copied().map(usize::from).collect();
    let numbers: Vec<usize> = if asked.is_empty() { doubled.collect() } else { asked.into_iter().collect() };
    match (numbers.first(), numbers.last()) {
        (Some(1), Some(most)) if *most <= all => Ok(numbers),
        (Some(1), most) => Err(Refused(format!("the job has {all} nodes, fewer than {}", most.unwrap_or(&0)))),
        _ => Err(Refused("scaling compares with one node: --nodes needs 1 and others".to_owned())),
    }
}

/// What the nodes print. Its own errors are on stderr.
fn asked(hosts: &[String], patience: Duration) -> anyhow::Result<String> {
    let words = srun(hosts);
    let mut command = dying_with_parent(&words[0]);
    command.args(&words[1..]).args(["sh", "-c", ASK]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut process = Process::start(&mut command).context("cannot start srun")?;
    let status = process.wait_or_kill(Instant::now() + patience)?;
    ensure!(status.success(), "srun ended with {status}; its reason is above");
    // A line of each node fits into a pipe, so that srun has ended without a reader.
    let mut printed = String::new();
    process.child.stdout.take().context("srun has no output")?.read_to_string(&mut printed)?;
    Ok(printed)
}

pub(crate) const STEP: &str = "step";
pub(crate) const EXPOSED: &str = "exposed communication";
pub(crate) const ALONE: &str = "all-reduces alone";
pub(crate) const ONE: &str = "one all-reduce";
pub(crate) const BUCKET: &str = "its bytes";

/// What grows with the number of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mode {
    /// Nothing: the same samples are shared by more ranks
    Strong,
    /// The samples: each rank has as many
    Weak,
}

/// Where a measure belongs in the tables of scaling.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct ScalingPoint {
    pub(crate) mode: Mode,
    pub(crate) model: String,
    pub(crate) ranks: usize,
    /// In a Slurm job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) span: Option<NodeSpan>,
}

impl Mode {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Mode::Strong => "strong",
            Mode::Weak => "weak",
        }
    }
}

#[cfg(test)]
mod tests {
    use lockstep_contract::scheduler::Read;

    use super::*;

    fn hosts(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn nodes_with_the_same_kernel_are_one_machine() {
        let printed = "n2 b-1 4\nn1 a-0 2\nsrun: note\nn3 b-1 4\n";
        let nodes = Nodes::parse(&hosts(&["n1", "n2", "n3"]), printed).unwrap();
        assert_eq!(nodes.span(1), NodeSpan { nodes: 1, machines: 1, cores: 2 });
        assert_eq!(nodes.span(2), NodeSpan { nodes: 2, machines: 2, cores: 6 });
        assert_eq!(nodes.span(3), NodeSpan { nodes: 3, machines: 2, cores: 6 });
        assert!(nodes.span(2).labels().is_empty());
        assert_eq!(nodes.span(3).labels(), ["3 nodes on 2 machines: not a scaling result"]);
        let error = Nodes::parse(&hosts(&["n1", "n4"]), printed).unwrap_err().to_string();
        assert!(error.starts_with("no answer from n4: "), "{error}");
    }

    #[test]
    fn takes_doubled_numbers_and_all_or_those_that_were_asked_for() {
        assert_eq!(numbers(&[], None).unwrap(), [1]);
        assert_eq!(numbers(&[], Some(6)).unwrap(), [1, 2, 4, 6]);
        assert_eq!(numbers(&[3, 1, 3], Some(4)).unwrap(), [1, 3]);
        let refused = |asked: &[u16], all| numbers(asked, all).unwrap_err().to_string();
        assert!(refused(&[1, 2], None).contains("a Slurm job of several nodes"));
        assert_eq!(refused(&[1, 5], Some(4)), "the job has 4 nodes, fewer than 5");
        assert!(refused(&[2], Some(4)).contains("needs 1"));
    }

    #[test]
    fn a_bench_that_srun_started_on_each_node_is_refused() {
        let job = |variables: &[(&str, &str)]| {
            let variables = [&[("SLURM_JOB_ID", "17"), ("SLURM_JOB_NUM_NODES", "2")], variables].concat();
            let variable =
                |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
            let file = |_: &str| Err(std::io::ErrorKind::NotFound.into());
            Allocation::find(&Read { variable: &variable, file: &file }, None).unwrap()
        };
        let step = [
            ("SLURM_STEP_ID", "0"),
            ("SLURM_STEP_NUM_NODES", "2"),
            ("SLURM_STEP_NODELIST", "n[1-2]"),
            ("SLURM_NODEID", "0"),
        ];
        let refused = Nodes::of_job(job(&step).as_ref(), Duration::ZERO).unwrap_err();
        assert!(refused.is::<Refused>() && refused.to_string().contains("run it once"), "{refused}");
        assert_eq!(Nodes::of_job(None, Duration::ZERO).unwrap(), None);
        let unnamed = Nodes::of_job(job(&[]).as_ref(), Duration::ZERO).unwrap_err().to_string();
        assert_eq!(unnamed, "Slurm job 17: the names of its nodes are not known");
    }
}
