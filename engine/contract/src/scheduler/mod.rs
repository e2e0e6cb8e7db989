//! What Slurm, PBS, MPI's launchers or a host file say about a job: its nodes, its first node, and the place of a process in
//! it.
//!
//! An [`Allocation`] is a job as `lockstep run` sees it, which is started once on each node; a [`Task`] is the place of a training
//! program that `mpirun`, `mpiexec` or `srun` started once for each rank. Both read only variables and files; they run no command. A
//! [`Question`] is a command that says when the job ends, for those who run it.
//!
//! The variables are those of Slurm (man srun, "OUTPUT ENVIRONMENT VARIABLES"; tested with Slurm 22.05), PBS Pro and OpenPBS
//! (man qsub, "PBS_NODEFILE"; man pbsdsh), and of MPI's launchers (tested with Open MPI 4.1 and MPICH 5.0).
//!
//! Below: Slurm, PBS and MPI's launchers are asked in turn for the job and the task of this process. Then: when a scheduler ends a job, how
//! long it waits between SIGTERM and SIGKILL, and how often the job was started before. If no variable gives an answer, a command of the
//! scheduler does. A [`Question`] is that command and the function that reads its output; the caller runs it, since it costs a process and
//! a request to the scheduler.

mod slurm;
mod task;

use std::time::{Duration, SystemTime};

use chrono::NaiveDateTime;
use task::{number, read_task};

pub use slurm::{HostFileError, expand, size_variables};
pub use task::{Number, Task, TaskError};

/// The ports at which the processes of a job meet: below Linux's ephemeral ports (32768 and up) and apart from torchrun's 29400
/// and 29500.
pub const PORTS: std::ops::Range<u16> = 20_000..29_000;

/// The job in which this agent was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// The scheduler of the job.
    pub scheduler: Scheduler,
    /// The job's id, as the scheduler names it; empty if it has none.
    pub id: String,
    /// The number of its nodes, and the variable or file that says so.
    pub nodes: (usize, String),
    /// The names of its nodes in order, and the variable or file that says so; `None` if they are not known.
    pub hosts: Option<(Vec<String>, String)>,
    /// How this agent was started.
    pub started: Started,
}

/// What started the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheduler {
    Slurm,
    /// PBS Pro, OpenPBS or Torque.
    Pbs,
    /// MPI's launcher (mpirun, mpiexec) without a scheduler.
    Mpi,
    /// `--hostfile`, without a scheduler.
    HostFile,
}

/// How this agent was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Started {
    /// One agent on each node.
    OnEachNode {
        /// The number of this node from 0, and the variable that says so; `None` if it is not known.
        node: Option<(usize, &'static str)>,
    },
    /// By the job's script, only on the first node.
    ByTheScript,
    /// Several times on a node.
    SeveralTimes {
        /// The number of agents on all nodes.
        agents: usize,
        /// The variable with this number, and its value.
        variable: String,
    },
}

/// Access to the environment: variables by name, and files by path.
pub struct Read<'a> {
    /// The value of a variable.
    pub variable: &'a dyn Fn(&str) -> Option<String>,
    /// The text of a file.
    pub file: &'a dyn Fn(&str) -> std::io::Result<String>,
}

impl Read<'static> {
    /// This process's environment.
    #[must_use]
    pub fn here() -> Self {
        Read { variable: &variable, file: &file }
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

fn file(path: &str) -> std::io::Result<String> {
    std::fs::read_to_string(path)
}

impl Allocation {
    /// A name that no other job has, such as `SLURM_JOB_ID=17`.
    #[must_use]
    pub fn name(&self) -> String {
        match self.scheduler {
            Scheduler::Slurm => format!("SLURM_JOB_ID={}", self.id.split('.').next().unwrap_or_default()),
            Scheduler::Pbs => format!("PBS_JOBID={}", self.id),
            Scheduler::Mpi | Scheduler::HostFile => self.id.clone(),
        }
    }

    /// Returns true if the scheduler ends the job at a time limit.
    #[must_use]
    pub fn sends_sigterm_at_the_end(&self) -> bool {
        matches!(self.scheduler, Scheduler::Slurm | Scheduler::Pbs)
    }

    /// The port at which the job's processes meet. It is the same on each node of the job, and most likely a different one for
    /// another job on the same node.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port_for("")
    }

    /// The port at which programs other than the job's own meet for `purpose`.
    #[must_use]
    pub fn port_for(&self, purpose: &str) -> u16 {
        port_of(&format!("{} {}{purpose}", self.name(), self.id))
    }

    /// The names of the nodes, if they are known.
    #[must_use]
    pub fn host_names(&self) -> &[String] {
        self.hosts.as_ref().map_or(&[], |(hosts, _)| hosts)
    }

    /// The command that starts one agent on each node.
    #[must_use]
    pub fn one_agent_per_node(&self) -> String {
        match self.scheduler {
            Scheduler::Slurm => {
                let nodes = self.nodes.0.max(self.host_names().len());
                format!("srun --nodes={nodes} --ntasks-per-node=1 lockstep run ...")
            }
            Scheduler::Pbs => "pbsdsh -u -- lockstep run ... (or: mpiexec -ppn 1 lockstep run ...)".to_owned(),
            Scheduler::Mpi => "mpirun --map-by ppr:1:node lockstep run ...".to_owned(),
            Scheduler::HostFile => "ssh HOST lockstep run --hostfile=FILE ...".to_owned(),
        }
    }

    /// The job's name for messages: `Slurm job 17.0`.
    #[must_use]
    pub fn title(&self) -> String {
        match self.scheduler {
            Scheduler::Slurm => format!("Slurm job {}", self.id),
            Scheduler::Pbs => format!("PBS job {}", self.id),
            Scheduler::Mpi => "MPI job".to_owned(),
            Scheduler::HostFile => "host file".to_owned(),
        }
    }
}

/// A port of [`PORTS`] for the key, by FNV-1a: the programs of one job may be of different builds.
pub(super) fn port_of(key: &str) -> u16 {
    let hash = key
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    PORTS.start + (hash % u64::from(PORTS.end - PORTS.start)) as u16
}

#[cfg(test)]
mod testing {
    use std::io;

    use super::*;
    use crate::scheduler::HostFileError;

    /// Finds a job in these variables; each file of `files` is a path and its text.
    pub(crate) fn find(
        variables: &[(&str, &str)],
        files: &[(&str, &str)],
        hostfile: Option<&str>,
    ) -> Option<Allocation> {
        try_find(variables, files, hostfile).unwrap()
    }

    pub(crate) fn try_find(
        variables: &[(&str, &str)],
        files: &[(&str, &str)],
        hostfile: Option<&str>,
    ) -> Result<Option<Allocation>, HostFileError> {
        let of = |pairs: &[(&str, &str)], name: &str| {
            pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        };
        let variable = |name: &str| of(variables, name);
        let file = |path: &str| of(files, path).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound));
        Allocation::find(&Read { variable: &variable, file: &file }, hostfile)
    }
}

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
            None => find_pbs(read)?.or_else(|| slurm::find_mpi(read)),
        };
        let Some(path) = hostfile else { return Ok(found) };
        let text = (read.file)(path).map_err(|source| HostFileError::Unreadable { path: path.into(), source })?;
        let hosts = slurm::read_file(path, &text)?;
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
        if let (Ok(Some(task)), false) = (&srun, slurm::is_not_srun(read)) {
            check_pmi(read, task)?;
            return Ok(Some(*task));
        }
        let (found, errors): (Vec<_>, Vec<_>) =
            slurm::LAUNCHERS.iter().map(|names| read_task(read, names)).chain([srun]).partition(Result::is_ok);
        let found: Vec<Task> = found.into_iter().filter_map(Result::ok).flatten().collect();
        if let [first, others @ ..] = &found[..] {
            others.iter().filter(|other| other.starter != "srun").try_for_each(|other| first.check_equal(other))?;
            return Ok(Some(*first));
        }
        match (errors.into_iter().find_map(Result::err), slurm::pmix(read)) {
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
    for (own, name) in [(task.rank, slurm::PMI_RANK), (task.size, slurm::PMI_SIZE)] {
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
    let hosts = file.map(|(text, path)| Ok((slurm::read_file(&path, &text)?, format!("PBS_NODEFILE={path}"))));
    let hosts: Option<(Vec<String>, String)> = hosts.transpose()?;
    let counted = hosts.as_ref().map(|(hosts, from)| (hosts.len(), from.clone()));
    // If MPI's launcher started this agent, it knows the number of agents.
    let under_mpi = slurm::find_mpi(read);
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

/// PBS's delay if a queue has none of its own (PBS Professional Reference Guide, queue attribute `kill_delay`).
const KILL_DELAY: Duration = Duration::from_secs(10);

/// A command, and what its output says.
#[derive(Clone, Debug)]
pub struct Question<T> {
    /// The program and its arguments, to be run with `TZ=UTC` and `LC_ALL=C`: PBS prints dates.
    pub words: Vec<String>,
    answer: fn(&str, SystemTime) -> Option<T>,
}

/// What a scheduler's command says about a running job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobState {
    /// When it ends; `None` without a time limit.
    pub end: Option<SystemTime>,
    /// How often it was started before, if no variable says so.
    pub restarts: Option<u32>,
}

impl<T> Question<T> {
    fn new(words: &[&str], answer: fn(&str, SystemTime) -> Option<T>) -> Self {
        Question { words: words.iter().map(|word| (*word).to_owned()).collect(), answer }
    }

    /// Reads the command's output, printed at this time; `None` if it has no answer.
    #[must_use]
    pub fn read(&self, output: &str, now: SystemTime) -> Option<T> {
        (self.answer)(output, now)
    }
}

/// When the job ends, by the variable of newer versions of Slurm (sbatch(1), SLURM_JOB_END_TIME).
#[must_use]
pub fn job_end(read: &Read<'_>) -> Option<SystemTime> {
    let seconds = (read.variable)("SLURM_JOB_END_TIME")?.trim().parse().ok()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

/// How often Slurm has started this job before; `None` without Slurm. PBS says it only when it is [asked](Allocation::ask_for_state).
#[must_use]
pub fn restarts(read: &Read<'_>) -> Option<u32> {
    let variable = |name: &str| (read.variable)(name).filter(|value| !value.is_empty());
    variable("SLURM_JOB_ID")?;
    Some(variable("SLURM_RESTART_COUNT").and_then(|text| text.parse().ok()).unwrap_or(0))
}

impl Allocation {
    /// Asks when this job ends; `None` without a scheduler that ends jobs.
    #[must_use]
    pub fn ask_for_state(&self) -> Option<Question<JobState>> {
        match self.scheduler {
            // The time that is left, because squeue prints the end in the local time of the machine.
            Scheduler::Slurm => {
                let job = self.id.split('.').next().unwrap_or_default();
                Some(Question::new(&["squeue", "--noheader", "--format=%L", "--jobs", job], slurm_state))
            }
            Scheduler::Pbs => Some(Question::new(&["qstat", "-f", &self.id], pbs_state)),
            Scheduler::Mpi | Scheduler::HostFile => None,
        }
    }

    /// Asks how long processes of this job have between SIGTERM and SIGKILL; `None` without a scheduler that ends jobs.
    #[must_use]
    pub fn ask_for_grace(&self, read: &Read<'_>) -> Option<Question<Duration>> {
        match self.scheduler {
            Scheduler::Slurm => Some(Question::new(&["scontrol", "show", "config"], kill_wait)),
            Scheduler::Pbs => {
                let queue = (read.variable)("PBS_QUEUE")?;
                Some(Question::new(&["qstat", "-Q", "-f", &queue], kill_delay))
            }
            Scheduler::Mpi | Scheduler::HostFile => None,
        }
    }
}

/// The earliest end among the parts of a heterogeneous job.
fn slurm_state(output: &str, now: SystemTime) -> Option<JobState> {
    let end = output.lines().filter_map(|line| now.checked_add(duration(line.trim())?)).min()?;
    Some(JobState { end: Some(end), restarts: None })
}

/// `KillWait                = 30 sec`.
fn kill_wait(output: &str, _: SystemTime) -> Option<Duration> {
    let seconds = attribute(output, "KillWait")?.split_whitespace().next()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}

fn pbs_state(output: &str, now: SystemTime) -> Option<JobState> {
    // OpenPBS counts all starts.
    let starts = attribute(output, "run_count").and_then(|text| text.parse::<u32>().ok());
    let restarts = starts.map(|starts| starts.saturating_sub(1));
    let end = pbs_end(output, now);
    (end.is_some() || restarts.is_some()).then_some(JobState { end, restarts })
}

/// Torque prints the time that is left; PBS Pro and OpenPBS print when the job began.
fn pbs_end(output: &str, now: SystemTime) -> Option<SystemTime> {
    if let Some(left) = attribute(output, "Walltime.Remaining").and_then(|text| text.parse().ok()) {
        return now.checked_add(Duration::from_secs(left));
    }
    let began = NaiveDateTime::parse_from_str(attribute(output, "stime")?, "%a %b %e %H:%M:%S %Y").ok()?;
    let began =
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(began.and_utc().timestamp().try_into().ok()?))?;
    began.checked_add(duration(attribute(output, "Resource_List.walltime")?)?)
}

fn kill_delay(output: &str, _: SystemTime) -> Option<Duration> {
    let given =
        attribute(output, "kill_delay").map_or(Some(KILL_DELAY), |text| Some(Duration::from_secs(text.parse().ok()?)));
    // Without a queue type, this is the output of something else.
    given.filter(|_| attribute(output, "queue_type").is_some())
}

/// The value in a line `name = value`.
fn attribute<'a>(output: &'a str, name: &str) -> Option<&'a str> {
    let mut pairs = output.lines().filter_map(|line| line.split_once('='));
    pairs.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim())
}

/// `[days-][hours:]minutes:seconds`, as Slurm and PBS print durations.
fn duration(text: &str) -> Option<Duration> {
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (days.parse::<u64>().ok()?, clock),
        None => (0, text),
    };
    let parts: Vec<u64> = clock.split(':').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    if !(2..=3).contains(&parts.len()) {
        return None;
    }
    let seconds = parts.iter().try_fold(0_u64, |sum, part| sum.checked_mul(60)?.checked_add(*part))?;
    Some(Duration::from_secs(days.checked_mul(86_400)?.checked_add(seconds)?))
}

#[cfg(test)]
mod tests {
    use super::testing::{find, try_find};
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

    const NOW: SystemTime = SystemTime::UNIX_EPOCH;

    fn at(seconds: u64) -> SystemTime {
        NOW + Duration::from_secs(seconds)
    }

    fn with<T>(variables: &[(&str, &str)], ask: impl FnOnce(&Read<'_>) -> T) -> T {
        let variable =
            |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        ask(&Read { variable: &variable, file: &|_: &str| Err(std::io::ErrorKind::NotFound.into()) })
    }

    #[test]
    fn reads_slurms_variable() {
        let end = |text| with(&[("SLURM_JOB_END_TIME", text)], job_end);
        assert_eq!(end("1763635200"), Some(at(1_763_635_200)));
        assert_eq!((end("soon"), with(&[], job_end)), (None, None));
    }

    #[test]
    fn counts_the_starts_of_a_slurm_job() {
        let of = |variables: &[(&str, &str)]| with(variables, restarts);
        let count = ("SLURM_RESTART_COUNT", "2");
        assert_eq!(
            [of(&[("SLURM_JOB_ID", "17")]), of(&[("SLURM_JOB_ID", "17"), count]), of(&[count])],
            [Some(0), Some(2), None]
        );
    }

    #[test]
    fn asks_slurm_for_the_time_that_is_left() {
        let job = find(&[("SLURM_JOB_ID", "17"), ("SLURM_STEP_ID", "0")], &[], None).unwrap();
        let question = job.ask_for_state().unwrap();
        assert_eq!(question.words.join(" "), "squeue --noheader --format=%L --jobs 17");
        let ends = [("9:57\n", 597), ("1-02:03:04\n", 93_784), ("1:00:00\n0:59\n", 59), ("0:00\n", 0)];
        assert!(
            ends.iter()
                .all(|(output, left)| question.read(output, at(5)).and_then(|state| state.end) == Some(at(5 + left)))
        );
        for none in ["", "UNLIMITED\n", "INVALID\n", "NOT_SET\n", "slurm_load_jobs error: Invalid job id\n", "1:2:3:4"]
        {
            assert!(question.read(none, NOW).is_none(), "{none}");
        }
    }

    #[test]
    fn asks_slurm_for_its_grace() {
        let job = find(&[("SLURM_JOB_ID", "17")], &[], None).unwrap();
        let question = with(&[], |read| job.ask_for_grace(read)).unwrap();
        let output = "Configuration data as of 2025\nKeepAliveTime           = SYSTEM_DEFAULT\nKillOnBadExit           = 0\nKillWait                = 600 sec\n";
        assert_eq!(question.read(output, NOW), Some(Duration::from_secs(600)));
        assert_eq!(question.read("Slurmctld is down\n", NOW), None);
    }

    /// As printed by qstat of OpenPBS and of Torque.
    #[test]
    fn asks_pbs_for_the_start_and_the_limit() {
        let job = find(&[("PBS_JOBID", "5.head")], &[], None).unwrap();
        let question = job.ask_for_state().unwrap();
        assert_eq!(question.words.join(" "), "qstat -f 5.head");
        let open = "Job Id: 5.head\n    Job_Name = train\n    Resource_List.walltime = 01:00:00\n    run_count = 2\n    stime = Tue Nov  4 10:00:00 2025\n    Variable_List = A=1,\n\tPBS_O_HOME=/home/a\n";
        assert_eq!(question.read(open, NOW), Some(JobState { end: Some(at(1_762_250_400 + 3600)), restarts: Some(1) }));
        let torque = "Job Id: 5.head\n    Resource_List.walltime = 01:00:00\n    Walltime.Remaining = 1200\n";
        assert_eq!(question.read(torque, at(7)), Some(JobState { end: Some(at(1207)), restarts: None }));
        for none in ["", "qstat: Unknown Job Id 5.head\n", "    stime = Tue Nov  4 10:00:00 2025\n"] {
            assert_eq!(question.read(none, NOW), None, "{none}");
        }
    }

    #[test]
    fn asks_pbs_for_the_queues_delay() {
        let job = find(&[("PBS_JOBID", "5.head")], &[], None).unwrap();
        let question = with(&[("PBS_QUEUE", "gpu")], |read| job.ask_for_grace(read)).unwrap();
        assert_eq!(question.words.join(" "), "qstat -Q -f gpu");
        let queue = "Queue: gpu\n    queue_type = Execution\n";
        assert_eq!(question.read(queue, NOW), Some(KILL_DELAY));
        assert_eq!(question.read(&format!("{queue}    kill_delay = 60\n"), NOW), Some(Duration::from_secs(60)));
        assert_eq!(question.read("", NOW), None);
        assert!(with(&[], |read| job.ask_for_grace(read)).is_none());
    }
}
