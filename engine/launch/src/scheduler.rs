//! Fills in rendezvous flags from the job in which this agent was started.
//!
//! [`apply()`] fills in the flags that the user did not give, and refuses flags that cannot work. [`ask()`] runs a command of the
//! scheduler without making the agent wait for it. [`lockstep_contract::scheduler`], which the training programs use, too, reads
//! what a scheduler, MPI's launcher or a host file says about the job.

use std::io::Read as _;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use lockstep_contract::scheduler::{Question, Read, Task, TaskError};
use lockstep_process::{Process, Signal};

use crate::config::{ConfigError, Endpoint, Flags, Given, Nodes, Source};

pub use lockstep_contract::scheduler::{Allocation, HostFileError, Scheduler, Started, expand};

/// A flag's value that came from the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The flag without dashes, such as `nnodes`.
    pub flag: &'static str,
    /// Its value; empty for a switch.
    pub value: String,
    /// The variable or file that says so.
    pub from: String,
}

/// Fills in the flags that the user did not give; those that were given win. Returns what was filled in, and notices.
///
/// # Errors
/// The flags cannot work with this job: an agent on only one of several nodes, several agents on a node, a
/// different number of nodes than the job has, or nodes without known names.
pub fn apply(job: &Allocation, flags: &mut Flags) -> Result<(Vec<Taken>, Vec<String>), ConfigError> {
    let (mut taken, notices) = rendezvous(job, flags)?;
    taken.extend(snapshot_on(job, flags));
    Ok((taken, notices))
}

/// Where nothing names a job: PMIx may have numbered this agent all the same, without the number of agents.
///
/// # Errors
/// PMIx has numbered this agent, and the flags say nothing about the other agents.
pub fn without_job(flags: &Flags) -> Result<(Vec<Taken>, Vec<String>), ConfigError> {
    let says = flags.standalone || [&flags.nnodes, &flags.rdzv_endpoint, &flags.master_addr].into_iter().any(is_given);
    match Task::find(&Read::here()) {
        Err(error @ TaskError::Uncounted { .. }) if !says => Err(ConfigError::Clash(format!(
            "{error}. An agent that other agents do not know would train alone: give --nnodes=N and --rdzv-endpoint=HOST:PORT, or \
             --standalone"
        ))),
        _ => Ok(Default::default()),
    }
}

/// Schedulers send SIGTERM at a job's time limit, so workers that can save a snapshot do.
fn snapshot_on(job: &Allocation, flags: &mut Flags) -> Option<Taken> {
    const SIGTERM: &str = "SIGTERM";
    let ends_the_job = flags.signals_to_handle.text.split(',').any(|name| name.trim() == SIGTERM);
    if !job.sends_sigterm_at_the_end() || !ends_the_job {
        return None;
    }
    fill_one(&mut flags.snapshot_on, SIGTERM.to_owned(), &job.name())
}

/// The flags by which agents meet.
fn rendezvous(job: &Allocation, flags: &mut Flags) -> Result<(Vec<Taken>, Vec<String>), ConfigError> {
    let (agents, _) = &job.nodes;
    let alone = flags.standalone || (is_given(&flags.nnodes) && Nodes::parse(&flags.nnodes)?.max == 1);
    if alone {
        let several = *agents > 1 && matches!(job.started, Started::OnEachNode { .. });
        let notice = || format!("{}: each of its {agents} agents runs a job of its own, as the flags say", job.title());
        return Ok((Vec::new(), several.then(notice).into_iter().collect()));
    }
    let meets = [&flags.nnodes, &flags.rdzv_endpoint, &flags.master_addr].into_iter().any(is_given);
    match &job.started {
        // The user knows how the agents are started: by ssh from the script, or several on a node.
        Started::ByTheScript | Started::SeveralTimes { .. } if meets => return Ok(Default::default()),
        Started::ByTheScript if *agents > 1 => return Err(only_here(job)),
        Started::SeveralTimes { agents, variable } => return Err(several_times(job, *agents, variable)),
        Started::ByTheScript | Started::OnEachNode { .. } => {}
    }
    if *agents <= 1 {
        return match one_of(job) {
            Some(_) if meets => Ok(Default::default()),
            Some(error) => Err(error),
            None => Ok((one_node(job, flags), Vec::new())),
        };
    }
    check_number(job, &flags.nnodes)?;
    let taken = fill(job, flags)?;
    Ok((taken, meeting_place(job, flags).into_iter().collect()))
}

/// The host and the port at which programs other than the agents can meet: the first node, and a port that depends on the
/// job and on `purpose`, so that it differs from the agents' own.
///
/// # Errors
/// Nothing names the nodes.
pub fn meeting_point(job: &Allocation, purpose: &str) -> Result<(String, u16), ConfigError> {
    Ok((head(job)?.0, job.port_for(purpose)))
}

/// A notice of the agents' endpoint, which the first agent prints.
fn meeting_place(job: &Allocation, flags: &Flags) -> Option<String> {
    let Started::OnEachNode { node: None | Some((0, _)) } = job.started else { return None };
    let (host, port) = (&flags.master_addr.text, &flags.master_port.text);
    let place = match flags.rdzv_endpoint.text.as_str() {
        "" if host.contains(':') && !host.starts_with('[') => format!("[{host}]:{port}"),
        "" => format!("{host}:{port}"),
        endpoint => endpoint.to_owned(),
    };
    Some(format!("{}: {} nodes meet at {place} (--dry-run shows what came from where)", job.title(), flags.nnodes.text))
}

fn only_here(job: &Allocation) -> ConfigError {
    let (agents, from) = &job.nodes;
    ConfigError::Clash(format!(
        "{} has {agents} nodes ({from}), but its script starts this command on only one of them: start one agent on each node \
         ({}), or give --standalone to use this node only",
        job.title(),
        job.one_agent_per_node()
    ))
}

/// The error of an agent that is the only one although the job's list has several nodes, whichever list that is.
fn one_of(job: &Allocation) -> Option<ConfigError> {
    let (hosts, list) = job.hosts.as_ref().filter(|(hosts, _)| hosts.len() > 1)?;
    Some(ConfigError::Clash(format!(
        "{} has {} nodes ({list}), but only one agent was started ({}), which would train alone: start one agent on each node ({}), or \
         give --standalone to use this node only",
        job.title(),
        hosts.len(),
        job.nodes.1,
        job.one_agent_per_node()
    )))
}

fn several_times(job: &Allocation, agents: usize, variable: &str) -> ConfigError {
    ConfigError::Clash(format!(
        "{} starts {agents} agents, several on a node ({variable}), but an agent starts the workers of its node itself: start one \
         on each node ({}) and give it --nproc-per-node",
        job.title(),
        job.one_agent_per_node()
    ))
}

/// The agent of a job with one node meets no other, so it gets a port of its own, different from the ports of other jobs on the
/// machine.
fn one_node(job: &Allocation, flags: &mut Flags) -> Vec<Taken> {
    let given = [
        &flags.nnodes,
        &flags.rdzv_backend,
        &flags.rdzv_endpoint,
        &flags.master_addr,
        &flags.master_port,
        &flags.node_rank,
    ];
    if given.into_iter().any(is_given) {
        return Vec::new();
    }
    flags.standalone = true;
    vec![Taken { flag: "standalone", value: String::new(), from: job.nodes.1.clone() }]
}

fn check_number(job: &Allocation, nnodes: &Given) -> Result<(), ConfigError> {
    let (agents, from) = &job.nodes;
    let asked = Nodes::parse(nnodes)?;
    if !is_given(nnodes) || (asked.min..=asked.max).contains(agents) {
        return Ok(());
    }
    let why = if asked.min > *agents { "the others would never come" } else { "the others would find the job full" };
    let why = format!(
        "{} starts {agents} agents ({from}), and {why}: leave the flag out, or give --nnodes={agents}",
        job.title()
    );
    Err(ConfigError::NotAllowed { given: nnodes.clone(), why })
}

fn fill(job: &Allocation, flags: &mut Flags) -> Result<Vec<Taken>, ConfigError> {
    let (agents, from) = &job.nodes;
    let mut filling = Filling(Vec::new());
    filling.fill(&mut flags.nnodes, agents.to_string(), from);
    let fixed = flags.rdzv_backend.text == "static" && is_given(&flags.rdzv_backend)
        || is_given(&flags.node_rank)
        || is_given(&flags.master_addr);
    let port = job.port();
    if fixed {
        if let Started::OnEachNode { node: Some((node, variable)) } = job.started {
            filling.fill(&mut flags.node_rank, node.to_string(), &format!("{variable}={node}"));
        }
        if !is_given(&flags.rdzv_endpoint) && !is_given(&flags.master_addr) {
            let (head, from) = head(job)?;
            filling.fill(&mut flags.master_addr, head, from);
            filling.fill(&mut flags.master_port, port.to_string(), &job.title());
        }
        return Ok(filling.0);
    }
    filling.fill(&mut flags.rdzv_backend, "c10d".to_owned(), from);
    if !is_given(&flags.rdzv_endpoint) {
        let (head, from) = head(job)?;
        filling.fill(&mut flags.rdzv_endpoint, Endpoint { host: head, port }.to_string(), from);
    }
    if !job.id.is_empty() {
        filling.fill(&mut flags.rdzv_id, job.id.clone(), &job.name());
    }
    Ok(filling.0)
}

/// The first node, where the agents meet.
fn head(job: &Allocation) -> Result<(String, &str), ConfigError> {
    let hosts = job.hosts.as_ref();
    let head = hosts.and_then(|(hosts, from)| Some((hosts.first()?.clone(), from.as_str())));
    head.ok_or_else(|| {
        let (agents, from) = &job.nodes;
        ConfigError::Clash(format!(
            "{} starts {agents} agents ({from}), and nothing names their nodes: give --rdzv-endpoint=HOST:PORT with the name of one \
             node, or --hostfile=FILE with a node on each line",
            job.title()
        ))
    })
}

fn is_given(given: &Given) -> bool {
    given.source != Source::Default
}

struct Filling(Vec<Taken>);

impl Filling {
    fn fill(&mut self, given: &mut Given, value: String, from: &str) {
        self.0.extend(fill_one(given, value, from));
    }
}

/// Fills in a flag that the user did not give.
fn fill_one(given: &mut Given, value: String, from: &str) -> Option<Taken> {
    if is_given(given) {
        return None;
    }
    *given = Given { flag: given.flag, text: value.clone(), source: Source::Allocation };
    Some(Taken { flag: given.flag, value, from: from.to_owned() })
}

/// How long a scheduler may take to answer. A busy one takes seconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs the question's command in a thread of its own and calls `then` with the answer, if there is one in time.
pub fn ask<T: 'static>(question: Question<T>, then: impl FnOnce(T) + Send + 'static) {
    // If the thread cannot start, nobody calls `then`.
    let _ = thread::Builder::new().name("scheduler".into()).spawn(move || {
        let output = output(&question.words, Instant::now() + PATIENCE);
        if let Some(answer) = output.and_then(|output| question.read(&output, SystemTime::now())) {
            then(answer);
        }
    });
}

/// What the command prints; `None` if it cannot run or has not ended by the deadline. The agent reaps all of its children, so this one
/// may be reaped elsewhere and its exit code is not known.
fn output(words: &[String], deadline: Instant) -> Option<String> {
    let (program, arguments) = words.split_first()?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    command.env("TZ", "UTC").env("LC_ALL", "C");
    let mut process = Process::start(&mut command).ok()?;
    let mut stdout = process.child.stdout.take()?;
    process.wait_until(deadline);
    let in_time = Instant::now() < deadline;
    // Has no effect on a process that has ended.
    let _ = process.signal(Signal::KILL);
    let mut text = String::new();
    let read = in_time && stdout.read_to_string(&mut text).is_ok();
    let _ = process.child.wait();
    read.then_some(text)
}

#[cfg(test)]
mod tests {
    use lockstep_contract::scheduler::PORTS;

    use super::*;
    use crate::config::testing::flags;

    const STEP: [(&str, &str); 6] = [
        ("SLURM_JOB_ID", "17"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_STEP_NUM_NODES", "3"),
        ("SLURM_STEP_NODELIST", "n[1-3]"),
        ("SLURM_STEP_NUM_TASKS", "3"),
        ("SLURM_NODEID", "1"),
    ];

    fn applied(variables: &[(&str, &str)], given: &[&str]) -> Result<(Vec<String>, Flags), String> {
        let variable =
            |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        let file = |_: &str| Ok("x1\nx1\nx2\n".to_owned());
        let job = Allocation::find(&Read { variable: &variable, file: &file }, None).unwrap().unwrap();
        let mut flags = flags(given);
        let (taken, notices) = apply(&job, &mut flags).map_err(|error| error.to_string())?;
        let taken = taken.iter().map(|taken| format!("--{}={} from {}", taken.flag, taken.value, taken.from));
        Ok((taken.chain(notices).collect(), flags))
    }

    /// The step with another value of one variable.
    fn step_with<'a>(changed: &'a str, value: &'a str) -> Vec<(&'a str, &'a str)> {
        STEP.iter().map(|(name, old)| if *name == changed { (*name, value) } else { (*name, *old) }).collect()
    }

    #[test]
    fn a_step_needs_no_flag() {
        let (taken, flags) = applied(&STEP, &[]).unwrap();
        let port = flags.rdzv_endpoint.text.strip_prefix("n1:").unwrap().parse::<u16>().unwrap();
        assert!(PORTS.contains(&port), "{port}");
        assert_eq!(flags.nnodes.to_string(), "--nnodes=3 (from the job that this agent was started in)");
        assert_eq!(
            taken,
            [
                "--nnodes=3 from SLURM_STEP_NUM_NODES=3",
                "--rdzv-backend=c10d from SLURM_STEP_NUM_NODES=3",
                &format!("--rdzv-endpoint=n1:{port} from SLURM_STEP_NODELIST=n[1-3]"),
                "--rdzv-id=17.0 from SLURM_JOB_ID=17",
                "--snapshot-on=SIGTERM from SLURM_JOB_ID=17",
            ]
        );
    }

    #[test]
    fn steps_of_a_job_meet_at_ports_of_their_own() {
        let port = |step: &str| applied(&step_with("SLURM_STEP_ID", step), &[]).unwrap().1.rdzv_endpoint.text;
        assert_ne!(port("0"), port("1"));
    }

    #[test]
    fn given_flags_win() {
        let (taken, flags) = applied(&STEP, &["--rdzv-endpoint=n2:7777", "--rdzv-id=mine"]).unwrap();
        assert_eq!((flags.rdzv_endpoint.text.as_str(), flags.rdzv_id.text.as_str()), ("n2:7777", "mine"));
        assert_eq!(taken.len(), 3, "{taken:?}");
        let (taken, flags) = applied(&STEP, &["--rdzv-backend=static"]).unwrap();
        assert_eq!((flags.node_rank.text.as_str(), flags.master_addr.text.as_str()), ("1", "n1"));
        assert_eq!(taken.len(), 5, "{taken:?}");
        let (_, flags) = applied(&STEP, &["--master-addr=n3", "--master-port=5"]).unwrap();
        assert_eq!((flags.rdzv_backend.text.as_str(), flags.node_rank.text.as_str()), ("static", "1"));
        assert_eq!((flags.master_addr.text.as_str(), flags.master_port.text.as_str()), ("n3", "5"));
    }

    #[test]
    fn a_job_of_one_node_is_standalone() {
        let one = [("SLURM_JOB_ID", "17"), ("SLURM_JOB_NUM_NODES", "1"), ("SLURM_JOB_NODELIST", "n1")];
        let (taken, flags) = applied(&one, &[]).unwrap();
        assert!(flags.standalone);
        assert_eq!(taken, ["--standalone= from SLURM_JOB_NUM_NODES=1", "--snapshot-on=SIGTERM from SLURM_JOB_ID=17"]);
        assert!(!applied(&one, &["--master-port=29501"]).unwrap().1.standalone);
    }

    #[test]
    fn the_first_agent_prints_the_endpoint() {
        let (taken, flags) = applied(&step_with("SLURM_NODEID", "0"), &[]).unwrap();
        let place = &flags.rdzv_endpoint.text;
        assert_eq!(taken[5], format!("Slurm job 17.0: 3 nodes meet at {place} (--dry-run shows what came from where)"));
    }

    #[test]
    fn standalone_agents_of_one_job_get_a_notice() {
        for given in ["--standalone", "--nnodes=1"] {
            let (notices, _) = applied(&STEP, &[given]).unwrap();
            assert_eq!(notices[1..], ["Slurm job 17.0: each of its 3 agents runs a job of its own, as the flags say"]);
        }
    }

    #[test]
    fn refuses_a_launcher_on_only_the_first_node() {
        let script = [("SLURM_JOB_ID", "17"), ("SLURM_JOB_NUM_NODES", "2"), ("SLURM_JOB_NODELIST", "n[1-2]")];
        let error = applied(&script, &[]).unwrap_err();
        assert_eq!(
            error,
            "Slurm job 17 has 2 nodes (SLURM_JOB_NUM_NODES=2), but its script starts this command on only one of them: start one agent \
             on each node (srun --nodes=2 --ntasks-per-node=1 lockstep run ...), or give --standalone to use this node only"
        );
        let (taken, _) = applied(&script, &["--nnodes=2", "--rdzv-endpoint=n1:1"]).unwrap();
        assert_eq!(taken, ["--snapshot-on=SIGTERM from SLURM_JOB_ID=17"]);
        let pbs = [
            ("PBS_JOBID", "5.head"),
            ("PBS_NODEFILE", "/nodes"),
            ("PBS_ENVIRONMENT", "PBS_BATCH"),
            ("PBS_TASKNUM", "1"),
        ];
        assert!(applied(&pbs, &[]).unwrap_err().contains("(PBS_NODEFILE=/nodes), but its script"));
    }

    #[test]
    fn refuses_one_agent_where_the_list_has_several_nodes() {
        let mut one = step_with("SLURM_STEP_NUM_NODES", "1");
        one.retain(|(name, _)| *name != "SLURM_STEP_NUM_TASKS");
        let error = applied(&one, &[]).unwrap_err();
        assert_eq!(
            error,
            "Slurm job 17.0 has 3 nodes (SLURM_STEP_NODELIST=n[1-3]), but only one agent was started (SLURM_STEP_NUM_NODES=1), which \
             would train alone: start one agent on each node (srun --nodes=3 --ntasks-per-node=1 lockstep run ...), or give --standalone \
             to use this node only"
        );
        let mpi = [
            ("PBS_JOBID", "5.head"),
            ("PBS_NODEFILE", "/nodes"),
            ("PMI_RANK", "0"),
            ("PMI_SIZE", "1"),
            ("MPI_LOCALNRANKS", "1"),
        ];
        let error = applied(&mpi, &[]).unwrap_err();
        assert!(
            error.contains("has 2 nodes (PBS_NODEFILE=/nodes), but only one agent was started (PMI_SIZE=1)"),
            "{error}"
        );
        for flags in [&["--standalone"][..], &["--nnodes=1"], &["--nnodes=2", "--rdzv-endpoint=n1:1"]] {
            assert!(applied(&one, flags).is_ok(), "{flags:?}");
        }
    }

    #[test]
    fn refuses_several_agents_on_a_node() {
        let mut four = step_with("SLURM_STEP_NUM_TASKS", "12");
        four.push(("SLURM_STEP_TASKS_PER_NODE", "4(x3)"));
        let error = applied(&four, &[]).unwrap_err();
        assert!(
            error.starts_with(
                "Slurm job 17.0 starts 12 agents, several on a node (SLURM_STEP_TASKS_PER_NODE=4(x3)), but"
            ),
            "{error}"
        );
        let (taken, _) = applied(&four, &["--nnodes=12", "--rdzv-endpoint=n1:1", "--rdzv-backend=c10d"]).unwrap();
        assert_eq!(taken, ["--snapshot-on=SIGTERM from SLURM_JOB_ID=17"]);
    }

    #[test]
    fn addresses_of_ipv6_have_brackets_in_front_of_a_port() {
        let six = [&step_with("SLURM_STEP_NODELIST", "fd00::1,fd00::2")[..], &[("SLURM_NODEID", "0")]].concat();
        let (_, flags) = applied(&six, &[]).unwrap();
        assert!(flags.rdzv_endpoint.text.starts_with("[fd00::1]:2"), "{}", flags.rdzv_endpoint.text);
        let (taken, flags) = applied(&step_with("SLURM_NODEID", "0"), &["--master-addr=fd00::1"]).unwrap();
        assert_eq!(flags.master_addr.text, "fd00::1");
        assert!(taken.last().unwrap().contains("meet at [fd00::1]:"), "{taken:?}");
    }

    #[test]
    fn sigterm_is_a_wish_for_a_snapshot_where_a_scheduler_ends_jobs() {
        let of = |variables: &[(&str, &str)], given: &[&str]| applied(variables, given).unwrap().1.snapshot_on.text;
        assert_eq!(of(&STEP, &[]), "SIGTERM");
        assert_eq!(of(&STEP, &["--snapshot-on="]), "");
        assert_eq!(of(&STEP, &["--snapshot-on=SIGINT"]), "SIGINT");
        assert_eq!(of(&STEP, &["--signals-to-handle=SIGINT"]), "");
        let pbs = [("PBS_JOBID", "5.head"), ("PBS_NODENUM", "0")];
        assert_eq!(of(&pbs, &[]), "SIGTERM");
        let mpi = [("OMPI_COMM_WORLD_SIZE", "1"), ("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "1")];
        assert_eq!(of(&mpi, &[]), "");
    }

    #[test]
    fn refuses_numbers_of_nodes_that_contradict_the_job() {
        let error = applied(&STEP, &["--nnodes=4"]).unwrap_err();
        assert!(error.starts_with(
            "--nnodes=4: Slurm job 17.0 starts 3 agents (SLURM_STEP_NUM_NODES=3), and the others would never come"
        ));
        assert!(applied(&STEP, &["--nnodes=2"]).unwrap_err().contains("would find the job full"));
        assert!(applied(&STEP, &["--nnodes=1:4"]).is_ok());
    }

    #[test]
    fn asks_for_the_nodes_where_nothing_names_them() {
        let mpi = [("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "1")];
        let error = applied(&mpi, &[]).unwrap_err();
        assert!(
            error.contains("MPI job starts 2 agents (OMPI_COMM_WORLD_SIZE=2), and nothing names their nodes"),
            "{error}"
        );
        let (taken, _) = applied(&mpi, &["--rdzv-endpoint=n1:7"]).unwrap();
        assert_eq!(taken[0], "--nnodes=2 from OMPI_COMM_WORLD_SIZE=2");
    }

    fn answer(words: &[&str], patience: Duration) -> Option<String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        output(&words, Instant::now() + patience)
    }

    #[test]
    fn returns_what_a_command_prints() {
        assert_eq!(answer(&["sh", "-c", "echo 9:57"], Duration::from_secs(60)).as_deref(), Some("9:57\n"));
        assert_eq!(answer(&["/no/such/scheduler"], Duration::from_secs(60)), None);
    }

    #[test]
    fn gives_up_a_command_that_does_not_end() {
        assert_eq!(answer(&["sleep", "1000"], Duration::ZERO), None);
    }
}
