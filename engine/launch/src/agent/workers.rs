//! The workers of the current attempt: starts them and describes their deaths for the report.
//!
//! [`KernelSleep`] finds those that sleep in the kernel, where no signal reaches them: one that sleeps for longer than
//! `TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT` ends the job. If the variable is not set, nothing is checked.
//!
//! As in torch (`_check_uninterruptible_state_timeout` of elastic/agent/server/local_elastic_agent.py), the main thread counts. Unlike
//! in torch, a single sleep has to exceed the limit: many short ones, as for a disk, do not count.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use lockstep_contract::events::{AgentEvent, AgentSink};
use lockstep_contract::{foreign, recording};
use lockstep_process::proc::Status;
use lockstep_process::{Died, Exit, NoProgress, Sink, Spec, Stdin, Workers, refusal};

use super::meet::GLOO_INTERFACE;
use super::membership::Master;
use super::recording::Recording;
use super::state_machine::has_saved;
use crate::config::{Attempt, Config, LineOrigin, LogDir, Placement, Route, worker_env};
use crate::output::{Console, Outputs, Plan, Prefix, Stream, StreamPlan};
use crate::rendezvous::Round;
use crate::report::{Death, Failure};

/// Why not all workers could be started.
pub(super) struct NotStarted {
    /// The number of workers that were started.
    pub(super) started: usize,
    pub(super) why: String,
}

/// The number of open files that the agent needs: for each worker its process, a socket, the pipes and files of its
/// output, and a connection to the store.
pub(super) fn open_files(config: &Config) -> u64 {
    /// The agent's own: standard streams, the runtime's, the store's, event files.
    const OWN: u64 = 64;
    let count = config.local_world_size;
    let of_route = |route: &Route| 2 + u64::from(route.file) + u64::from(route.filtered);
    let of_worker = |worker| {
        let routes = config.logs.routes(worker, count);
        3 + of_route(&routes.stdout) + of_route(&routes.stderr)
    };
    OWN + (0..count).map(of_worker).sum::<u64>()
}

/// What is the same for all attempts on this node.
pub(super) struct Context<'a> {
    pub(super) config: &'a Config,
    pub(super) console: Console,
    pub(super) logs: LogDir,
    pub(super) events: AgentSink,
    pub(super) recording: Option<Recording>,
    pub(super) hostname: String,
    /// A status line on the terminal shows the state of the job.
    pub(super) has_status: bool,
    /// Where workers write events that only the status line needs.
    pub(super) status_events: Option<PathBuf>,
    /// The network interface of the workers' Gloo, if the agent chooses one.
    pub(super) gloo_interface: Option<String>,
}

impl Context<'_> {
    /// Prints a line of the agent itself.
    pub(super) fn say(&self, line: &str) {
        self.console.say(line);
    }
}

/// The workers of the current attempt and their deaths.
#[derive(Default)]
pub(super) struct Current {
    /// Counts how often this node's workers were started.
    pub(super) attempt: Option<u64>,
    pub(super) formed: Option<(Round, Master)>,
    pub(super) outputs: Option<Outputs>,
    /// When each was started, by local rank.
    pub(super) started: Vec<SystemTime>,
    /// The process id of each, by local rank.
    pub(super) pids: Vec<u32>,
    /// By local rank.
    pub(super) error_files: Vec<Option<PathBuf>>,
    /// In the kernel's order, without what the workers printed.
    pub(super) deaths: Vec<Death>,
}

impl Current {
    /// The next attempt, in the round that was formed meanwhile.
    pub(super) fn next(&mut self) -> Self {
        let attempt = self.attempt.map_or(0, |attempt| attempt + 1);
        Current { attempt: Some(attempt), formed: self.formed.take(), ..Current::default() }
    }

    /// Starts all workers of this node for the round that was formed. `restarts` is the number of restarts after
    /// failures of this node.
    pub(super) fn start_all(
        &mut self,
        context: &Context<'_>,
        workers: &mut Workers,
        restarts: u32,
    ) -> Result<(), NotStarted> {
        let attempt = self.attempt.unwrap_or(0);
        let count = context.config.local_world_size;
        let none = |why: String| NotStarted { started: 0, why };
        let folder = match context.logs.attempt(attempt, count) {
            // Nobody has asked for these files.
            Err(error) if attempt > 0 && context.logs.is_temporary() && !context.config.logs.writes_files(count) => {
                context.say(&format!("{error}: the workers go on without error files"));
                Attempt::default()
            }
            made => made.map_err(|error| none(error.to_string()))?,
        };
        if let Some(run) = &folder.made_again {
            context.say(&format!("the log folder {} was removed while the job ran: made it again", foreign::path(run)));
        }
        let plans = (0..count).map(|worker| self.plan(context, &folder, worker)).collect();
        let (outputs, sinks) = Outputs::open(&context.console, plans)
            .map_err(|error| none(format!("cannot open the workers' output: {error}")))?;
        self.outputs = Some(outputs);
        self.record_round(context, attempt);
        for (worker, (stdout, stderr)) in sinks.into_iter().enumerate() {
            let spec = spec(context, self.placement(context, &folder, worker, restarts), stdout, stderr);
            self.started.push(SystemTime::now());
            let pid = workers.start(worker, spec).map_err(|error| NotStarted {
                started: worker,
                why: format!(
                    "cannot start worker {worker} of {count}: {error}; {}",
                    refusal(&error).unwrap_or_else(|| "see `ulimit -u` and free memory".to_owned())
                ),
            })?;
            self.pids.push(pid);
            let rank = self.rank_of(worker);
            tracing::info!("rank {rank} started: local rank {worker}, pid {pid}");
            context.events.emit(&AgentEvent::Started { attempt, rank, local_rank: worker, pid });
            self.error_files.push(folder.error_file(worker));
        }
        Ok(())
    }

    /// Records the round of this attempt.
    fn record_round(&self, context: &Context<'_>, attempt: u64) {
        if let Some((round, _)) = &self.formed {
            let (nodes, world_size) = (round.nodes, round.world_size);
            let formed =
                AgentEvent::Formed { round: round.number, attempt, group_rank: round.group_rank(), nodes, world_size };
            context.events.emit(&formed);
            let (number, group_rank) = (round.number, round.group_rank());
            tracing::info!(
                "round {number}: nodes {nodes}, ranks {world_size}; this is node {group_rank}; attempt {attempt}"
            );
        }
    }

    /// The rank of this node's worker in the current round.
    pub(super) fn rank_of(&self, worker: usize) -> usize {
        let formed = self.formed.as_ref();
        formed.and_then(|(round, _)| round.ranks_of(worker)).map_or(worker, |ranks| ranks.rank)
    }

    /// The local rank and the process id of each of these workers that was started.
    pub(super) fn with_pids(&self, workers: Vec<usize>) -> impl Iterator<Item = (usize, u32)> {
        workers.into_iter().filter_map(|worker| Some((worker, *self.pids.get(worker)?)))
    }

    /// A worker that SIGKILL has not ended, and where it stands.
    pub(super) fn describe_stuck(&self, worker: usize) -> String {
        let pid = self.pids.get(worker).copied().unwrap_or_default();
        let at = NoProgress::of(pid as i32).map_or_else(|| "why is not known".to_owned(), |at| at.to_string());
        let rank = self.rank_of(worker);
        format!("rank {rank} (local rank {worker}, pid {pid}) cannot be killed and is abandoned: {at}")
    }

    fn plan(&self, context: &Context<'_>, folder: &Attempt, worker: usize) -> Plan {
        let Config { logs, role, local_world_size, .. } = context.config;
        let routes = logs.routes(worker, *local_world_size);
        let rank = self.rank_of(worker);
        let prefix = logs.prefix(LineOrigin { role, rank, local_rank: worker, hostname: &context.hostname });
        let alone = *local_world_size == 1 && !context.has_status;
        // A single worker inherits a terminal, so that it sees one, but the report then has no last lines. Without a
        // terminal it cannot tell the difference.
        let console = &context.console;
        let inherits = [
            alone && console.is_terminal(Stream::Stdout),
            alone && console.is_terminal(Stream::Stderr) && console.is_one_device(),
        ];
        let plain = |route: &Route| route.console && !route.file && !route.prefixed && !route.filtered;
        let one = |stream: Stream, route: &Route, file, filters: &Vec<String>, filtered| StreamPlan {
            console: route.console,
            inherit: inherits[stream as usize] && plain(route),
            file: if route.file { file } else { None },
            prefix: if route.prefixed { Prefix::Always(prefix.clone()) } else { Prefix::Never },
            filters: filters.clone(),
            filtered: if route.filtered { filtered } else { None },
        };
        Plan {
            stdout: one(
                Stream::Stdout,
                &routes.stdout,
                folder.stdout(worker),
                &logs.duplicate_stdout,
                folder.filtered_stdout(),
            ),
            stderr: one(
                Stream::Stderr,
                &routes.stderr,
                folder.stderr(worker),
                &logs.duplicate_stderr,
                folder.filtered_stderr(),
            ),
        }
    }

    fn placement(&self, context: &Context<'_>, folder: &Attempt, worker: usize, restarts: u32) -> Placement {
        // Workers are started only after a round was formed, and the round has this many workers of this node.
        let (round, master) = self.formed.as_ref().expect("workers are started in a round");
        let ranks = round.ranks_of(worker).expect("the round has all workers of this node");
        Placement {
            rank: ranks.rank,
            local_rank: worker,
            world_size: round.world_size,
            local_world_size: context.config.local_world_size,
            group_rank: round.group_rank(),
            group_world_size: round.nodes,
            role_rank: ranks.role_rank,
            role_world_size: ranks.role_world_size,
            restart_count: restarts,
            master_addr: master.host.clone(),
            master_port: master.port,
            error_file: folder.error_file(worker),
        }
    }

    /// The report's entries for the workers that failed, in the order of their deaths.
    pub(super) fn collect_failures(&self, context: &Context<'_>) -> Vec<Failure> {
        let failed = self.deaths.iter().filter(|death| death.exitcode != 0 && !has_saved(death.exitcode));
        failed.map(|death| self.failure(death, context)).collect()
    }

    /// A worker's end with its last lines and its error file.
    pub(super) fn failure(&self, death: &Death, context: &Context<'_>) -> Failure {
        let outputs = self.outputs.as_ref();
        let tail = |stream| outputs.map_or_else(Vec::new, |outputs| outputs.tail(death.local_rank, stream));
        let (stderr, stdout) = (tail(Stream::Stderr), tail(Stream::Stdout));
        let (tail, stdout) = if stderr.is_empty() { (stdout, vec![]) } else { (stderr, stdout) };
        let unread = outputs.is_some_and(|outputs| outputs.is_unread(death.local_rank));
        let together = outputs.is_some_and(Outputs::is_together);
        let log = outputs.and_then(|outputs| outputs.log_of(death.local_rank)).map(Path::to_owned);
        Failure::of(Death { tail, stdout, together, log, unread, ..death.clone() }, &context.hostname)
    }

    /// A worker's end, before what it printed is known. `stopped` is true if this agent had asked the worker to end.
    pub(super) fn death(&self, Died { index, pid, exit, wall, .. }: Died, stopped: bool) -> Death {
        Death {
            rank: self.rank_of(index),
            local_rank: index,
            pid,
            exitcode: exit.torch_code(),
            started: self.started.get(index).copied().unwrap_or(wall),
            at: wall,
            stopped,
            not_started: match exit {
                Exit::NotStarted(why) => Some(why),
                _ => None,
            },
            error_file: self.error_files.get(index).cloned().flatten(),
            tail: vec![],
            stdout: vec![],
            together: false,
            log: None,
            unread: false,
        }
    }
}

fn spec(context: &Context<'_>, placement: Placement, stdout: Sink, stderr: Sink) -> Spec {
    let mut env = worker_env(context.config, &placement, &|name| std::env::var_os(name));
    let folder = context.status_events.iter().map(|folder| (lockstep_contract::events::FOLDER.into(), folder.into()));
    let gloo = context.gloo_interface.iter().map(|name| (GLOO_INTERFACE.into(), name.into()));
    let record = context.recording.iter().map(|recording| (recording::FOLDER.into(), recording.folder().into()));
    env.extend(folder.chain(gloo).chain(record));
    Spec {
        program: context.config.program.file.clone(),
        args: context.config.program.args(placement.local_rank),
        env: env.into_iter().map(|(name, value)| (name, Some(value))).collect(),
        folder: None,
        stdin: Stdin::Inherit,
        stdout,
        stderr,
    }
}

/// The shortest time between two looks.
const OFTEN: Duration = Duration::from_millis(50);

/// The local rank and the process id.
type Worker = (usize, u32);

/// Since when each worker has slept in the kernel.
#[derive(Debug)]
pub(super) struct KernelSleep {
    /// How long a sleep may last.
    limit: Option<Duration>,
    every: Duration,
    next: Option<Instant>,
    sleeps: BTreeMap<Worker, Sleep>,
}

#[derive(Debug)]
struct Sleep {
    /// How often the thread had slept before, for any reason: a different number means a different sleep.
    number: u64,
    since: Instant,
}

impl KernelSleep {
    /// Looks at intervals of `every`, the launcher's `--monitor-interval`.
    pub(super) fn new(limit: Option<Duration>, every: Duration) -> Self {
        KernelSleep { limit, every: every.max(OFTEN), next: None, sleeps: BTreeMap::new() }
    }

    /// When to look; `None` for never.
    pub(super) fn due(&mut self, now: Instant) -> Option<Instant> {
        self.limit?;
        Some(*self.next.get_or_insert(now))
    }

    /// Looks at these workers. Returns one that has slept for too long, and how long.
    pub(super) fn look_at(&mut self, workers: impl Iterator<Item = Worker>) -> Option<(Worker, Duration)> {
        let asleep = workers.filter_map(|worker| Some((worker, sleep_of(worker.1)?))).collect();
        self.look(Instant::now(), &asleep)
    }

    /// Notes the workers that sleep now, with the number of the sleep. Returns one that has slept for too long, and how long.
    fn look(&mut self, now: Instant, asleep: &BTreeMap<Worker, u64>) -> Option<(Worker, Duration)> {
        self.next = Some(now + self.every);
        self.sleeps.retain(|worker, sleep| asleep.get(worker) == Some(&sleep.number));
        for (worker, number) in asleep {
            self.sleeps.entry(*worker).or_insert(Sleep { number: *number, since: now });
        }
        let lasted = |sleep: &Sleep| now.saturating_duration_since(sleep.since);
        let limit = self.limit?;
        let longest = self.sleeps.iter().max_by_key(|(_, sleep)| lasted(sleep))?;
        Some((*longest.0, lasted(longest.1))).filter(|(_, lasted)| *lasted >= limit)
    }
}

/// The number of the sleep in the kernel in which the main thread of this process is.
fn sleep_of(pid: u32) -> Option<u64> {
    let status = Status::of(i32::try_from(pid).ok()?)?;
    status
        .number("voluntary_ctxt_switches")
        .filter(|_| status.field("State").is_some_and(|state| state.starts_with('D')))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn one_sleep_that_lasts_ends_the_job_and_many_short_ones_do_not() {
        let mut sleep = KernelSleep::new(Some(seconds(5)), seconds(1));
        let start = Instant::now();
        assert_eq!(sleep.due(start), Some(start));
        let mut look = |after, asleep: &[(usize, u64)]| {
            let asleep = asleep.iter().map(|(worker, number)| ((*worker, 100), *number)).collect();
            sleep.look(start + seconds(after), &asleep)
        };
        assert_eq!(look(0, &[(1, 40)]), None);
        assert_eq!(look(4, &[(0, 7), (1, 41)]), None, "another sleep of worker 1");
        assert_eq!(look(8, &[(1, 41)]), None, "worker 0 runs");
        assert_eq!(look(9, &[(0, 7), (1, 41)]), Some(((1, 100), seconds(5))));
        assert_eq!(sleep.due(start), Some(start + seconds(10)));
    }

    #[test]
    fn nobody_looks_without_a_limit() {
        let mut sleep = KernelSleep::new(None, Duration::ZERO);
        assert_eq!(sleep.due(Instant::now()), None);
        assert_eq!(sleep.look(Instant::now(), &BTreeMap::from([((0, 100), 1)])), None);
        assert_eq!(sleep_of(std::process::id()), None, "this thread runs, or sleeps outside the kernel");
    }
}
