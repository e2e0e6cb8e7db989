//! What one job wants: nodes, workers, time, and the program. The command line says it; the site profile has defaults.

use clap::Args;

use super::profile::{Profile, Scheduler};
use crate::exit::Refused;

/// A job as the command line asks for it.
#[derive(Args)]
pub(crate) struct JobRequest {
    /// Nodes: N; groups of unequal ones as NODESxWORKERS, such as 1x4,2x2; or MIN-MAX, for a training with virtual ranks that goes on with the
    /// nodes that are left
    #[arg(long, value_name = "NODES", default_value = "1")]
    nodes: String,
    /// GPUs of each node [default: the profile's]
    #[arg(long, value_name = "GPUS")]
    gpus_per_node: Option<u32>,
    /// Workers of each node [default: one for each GPU; 1 without GPUs]
    #[arg(long, value_name = "WORKERS", value_parser = clap::value_parser!(u32).range(1..))]
    workers_per_node: Option<u32>,
    /// The time limit, as HH:MM:SS or D-HH:MM:SS; Slurm and PBS need one
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    time: Option<u64>,
    /// Let the workers save a snapshot and end this many seconds before the time limit, then queue the job again
    #[arg(long, value_name = "SECONDS", requires = "time", value_parser = clap::value_parser!(u64).range(1..))]
    signal: Option<u64>,
    /// What the job is called [default: the program's name]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// An array of this many tasks, numbered from 0; Slurm and PBS
    #[arg(long, value_name = "TASKS", value_parser = clap::value_parser!(u32).range(1..))]
    array: Option<u32>,
    /// Copy this file or folder to each node's own disk first, and unpack it if it is a tar archive; may be repeated
    #[arg(long, value_name = "PATH")]
    stage: Vec<String>,
    /// A build job: run PROGRAM once, on one node and without a launcher, container or GPU
    #[arg(long, conflicts_with_all = ["nodes", "gpus_per_node", "workers_per_node", "signal", "array", "stage"])]
    build: bool,
    /// The program and its arguments
    #[arg(last = true, value_name = "PROGRAM [ARGS]", required_unless_present_any = ["check", "list", "show"])]
    program: Vec<String>,
}

/// Nodes with equally many workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) nodes: u32,
    pub(crate) workers: u32,
    pub(crate) gpus: u32,
}

/// A job, complete.
#[derive(Clone, Debug)]
pub(crate) struct BatchJob {
    /// What the scheduler calls it.
    pub(crate) name: String,
    /// The job's nodes; one group if all are equal.
    pub(crate) groups: Vec<Group>,
    /// It begins, and goes on, with any number of nodes from this one on; if `None`, it needs all.
    pub(crate) min_nodes: Option<u32>,
    pub(crate) time: Option<u64>,
    /// How long before it the workers are asked to end, in seconds.
    pub(crate) margin: Option<u64>,
    pub(crate) array: Option<u32>,
    /// What to copy to the nodes' own disks.
    pub(crate) stage: Vec<String>,
    /// Run the program once, without a launcher.
    pub(crate) build: bool,
    /// The program and its arguments.
    pub(crate) program: Vec<String>,
}

impl BatchJob {
    /// The job that `request` asks for at this site.
    pub(crate) fn of(request: JobRequest, profile: &Profile) -> Result<Self, Refused> {
        let gpus = request.gpus_per_node.unwrap_or(profile.gpus_per_node);
        let gpus = if request.build { 0 } else { gpus };
        let workers = request.workers_per_node.unwrap_or(gpus.max(1));
        let file = request.program.first().and_then(|program| program.rsplit('/').next()).unwrap_or_default();
        let (min_nodes, nodes) = range(&request.nodes)?;
        let job = BatchJob {
            name: request.name.unwrap_or_else(|| file.into()),
            groups: groups(nodes, Group { nodes: 1, workers, gpus })?,
            min_nodes,
            time: request.time,
            margin: request.signal,
            array: request.array,
            stage: request.stage,
            build: request.build,
            program: request.program,
        };
        job.fit(profile).map_or(Ok(job), |why| Err(Refused(why.into())))
    }

    /// Why the site cannot run it.
    fn fit(&self, profile: &Profile) -> Option<&'static str> {
        let batch = matches!(profile.scheduler, Scheduler::Slurm | Scheduler::Pbs);
        let reasons = [
            (batch && self.time.is_none(), "this scheduler needs a time limit: --time HH:MM:SS"),
            (!batch && self.array.is_some(), "--array needs Slurm or PBS"),
            (
                profile.scheduler == Scheduler::Pbs && self.array.is_some() && self.margin.is_some(),
                "--signal with --array: PBS would submit the whole array again for each task; leave one of them out",
            ),
            (!self.stage.is_empty() && profile.local.is_none(), "--stage needs `local` in the site profile"),
            (
                self.margin >= self.time && self.margin.is_some(),
                "--signal is not before the time limit ends: make it less than --time",
            ),
            (
                self.groups.len() > 1 && profile.start.is_some(),
                "unequal nodes need srun, pbsdsh or ssh: the profile's `start` starts equal programs",
            ),
            (
                self.groups.len() > 1 && profile.scheduler == Scheduler::Mpirun,
                "unequal nodes need Slurm, PBS or ssh: mpirun starts equal programs",
            ),
            (
                self.min_nodes.is_some() && (profile.start.is_some() || profile.scheduler == Scheduler::Mpirun),
                "--nodes MIN-MAX needs srun, pbsdsh or ssh: mpirun, or what the profile's `start` names, ends all nodes with the first \
                 that is lost",
            ),
            (self.groups.len() > 1 && self.array.is_some(), "Slurm cannot combine --array with a heterogeneous job"),
            (
                self.name.contains(|c: char| !c.is_ascii_alphanumeric() && !"-_.+".contains(c)),
                "the job's name has characters that schedulers refuse: --name gives it another",
            ),
        ];
        reasons.iter().find(|(broken, _)| *broken).map(|(_, why)| *why)
    }

    pub(crate) fn nodes(&self) -> u32 {
        self.groups.iter().map(|group| group.nodes).sum()
    }

    /// Workers of the nodes that have most.
    pub(crate) fn most_workers(&self) -> u32 {
        self.groups.iter().map(|group| group.workers).max().unwrap_or(1)
    }
}

/// Of `2-4` the least number, and the text of the largest.
fn range(text: &str) -> Result<(Option<u32>, &str), Refused> {
    let Some((min, max)) = text.split_once('-') else { return Ok((None, text)) };
    let numbers = min.parse::<u32>().ok().zip(max.parse::<u32>().ok()).filter(|(min, max)| 0 < *min && min < max);
    let (min, _) = numbers
        .ok_or_else(|| Refused(format!("--nodes {text}: give a range as MIN-MAX with 1 <= MIN < MAX, such as 2-4")))?;
    Ok((Some(min), max))
}

/// `2`, or `1x4,2x2`; a worker of a group is a GPU where nodes have any.
fn groups(text: &str, default: Group) -> Result<Vec<Group>, Refused> {
    let number = |text: &str| text.parse().ok().filter(|number| (1..=100_000).contains(number));
    let group = |part: &str| match part.split_once('x') {
        None => Some(Group { nodes: number(part)?, ..default }),
        Some((nodes, workers)) => {
            let workers = number(workers)?;
            Some(Group { nodes: number(nodes)?, workers, gpus: if default.gpus > 0 { workers } else { 0 } })
        }
    };
    let parsed = text.split(',').map(group).collect::<Option<Vec<_>>>();
    parsed.ok_or_else(|| Refused(format!("--nodes {text}: give a number, or groups such as 1x4,2x2 (nodes x workers)")))
}

/// Seconds of `HH:MM:SS` or `D-HH:MM:SS`.
fn seconds(text: &str) -> Result<u64, String> {
    let (days, clock) = text.split_once('-').unwrap_or(("0", text));
    let parts: Option<Vec<u64>> =
        clock.split(':').map(|part| part.parse().ok().filter(|number| *number < 10_000)).collect();
    match (days.parse::<u64>().ok().filter(|days| *days < 1000), parts.as_deref()) {
        (Some(days), Some([hours, minutes @ 0..60, seconds @ 0..60])) => {
            let all = ((days * 24 + hours) * 60 + minutes) * 60 + seconds;
            if all > 0 { Ok(all) } else { Err("no time at all".into()) }
        }
        _ => Err("give it as HH:MM:SS or D-HH:MM:SS".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_times_of_hours_and_days() {
        assert_eq!(seconds("00:30:00"), Ok(1800));
        assert_eq!(seconds("2-01:00:05"), Ok(2 * 86400 + 3605));
        for wrong in ["30", "00:00:00", "1:61:00", "x", "-1:00:00"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn reads_equal_and_unequal_nodes() {
        let gpu = Group { nodes: 1, workers: 4, gpus: 4 };
        assert_eq!(groups("3", gpu).unwrap(), [Group { nodes: 3, ..gpu }]);
        let two = Group { nodes: 2, workers: 2, gpus: 2 };
        assert_eq!(groups("1x4,2x2", gpu).unwrap(), [gpu, two]);
        let cpu = Group { nodes: 1, workers: 1, gpus: 0 };
        assert_eq!(groups("1x3", cpu).unwrap(), [Group { workers: 3, ..cpu }]);
        for wrong in ["0", "", "2x", "1x4,", "-1"] {
            assert!(groups(wrong, gpu).is_err(), "{wrong}");
        }
    }

    #[test]
    fn reads_a_range_of_equal_nodes() {
        assert_eq!(range("2-4").unwrap(), (Some(2), "4"));
        assert_eq!(range("1x4,2x2").unwrap(), (None, "1x4,2x2"));
        for wrong in ["4-2", "2-2", "0-2", "-1", "2-", "1x2-4", "2-1x4"] {
            assert!(range(wrong).is_err(), "{wrong}");
        }
    }
}
