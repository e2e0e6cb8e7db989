//! Starting the workers of an attempt, and what became of them in the words of the report.

use std::ffi::OsString;
use std::time::SystemTime;

use lockstep_events::AgentEvent;
use lockstep_process::{Exit, Sink, Spec, Stdin};

use super::run::{Agent, Death};
use crate::config::{Attempt, Config, Placement, Route, worker_env};
use crate::output::{Outputs, Plan, Prefix, Stream, StreamPlan};
use crate::rendezvous::RootCause;
use crate::report::{self, Failure};

/// Why not all workers could be started.
pub(super) struct NotStarted {
    /// How many could.
    pub(super) started: usize,
    pub(super) why: String,
}

/// The number of open files that the agent needs: for each worker its process, a socket, what its output is read from and
/// written to, and a connection to the store.
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

/// Starts all workers of this node for the round that was formed.
pub(super) fn start_all(agent: &mut Agent<'_>, attempt: u64) -> Result<(), NotStarted> {
    let count = agent.config.local_world_size;
    let none = |why: String| NotStarted { started: 0, why };
    let folder = agent.logs.attempt(attempt, count).map_err(|error| none(error.to_string()))?;
    let plans = (0..count).map(|worker| plan(agent, &folder, worker)).collect();
    let (outputs, sinks) = Outputs::open(&agent.console, plans)
        .map_err(|error| none(format!("cannot open the workers' output: {error}")))?;
    agent.current.outputs = Some(outputs);
    agent.tell_formed(attempt);
    for (worker, (stdout, stderr)) in sinks.into_iter().enumerate() {
        let spec = spec(agent, &folder, worker, stdout, stderr);
        agent.current.started.push(SystemTime::now());
        let pid = agent.workers.start(worker, spec).map_err(|error| NotStarted {
            started: worker,
            why: format!("cannot start worker {worker} of {count}: {error}; see `ulimit -u` and free memory"),
        })?;
        let rank = agent.rank_of(worker);
        tracing::info!("rank {rank} started: local rank {worker}, pid {pid}");
        agent.events.emit(&AgentEvent::Started { attempt, rank, local_rank: worker, pid });
        agent.current.error_files.push(folder.error_file(worker));
    }
    Ok(())
}

fn plan(agent: &Agent<'_>, folder: &Attempt, worker: usize) -> Plan {
    let Config { logs, role, local_world_size, .. } = agent.config;
    let routes = logs.routes(worker, *local_world_size);
    let prefix = logs.prefix(role, agent.rank_of(worker), worker);
    let alone = *local_world_size == 1 && agent.status.is_none();
    // Only the order in which both streams come, and what the worker finds at its end of them, is worth the last lines.
    let inherits = [alone, alone && agent.console.is_one_device()];
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

fn spec(agent: &Agent<'_>, folder: &Attempt, worker: usize, stdout: Sink, stderr: Sink) -> Spec {
    let placement = placement(agent, folder, worker);
    let mut env = worker_env(agent.config, &placement, &|name| std::env::var_os(name));
    if let Some(folder) = agent.status.as_ref().and_then(|status| status.folder()) {
        env.push((lockstep_events::FOLDER.into(), folder.into()));
    }
    Spec {
        program: agent.config.program.file.clone(),
        args: agent.config.program.args(worker),
        env: env.into_iter().map(|(name, value)| (name, Some(value))).collect::<Vec<(OsString, Option<OsString>)>>(),
        folder: None,
        stdin: Stdin::Inherit,
        stdout,
        stderr,
    }
}

fn placement(agent: &Agent<'_>, folder: &Attempt, worker: usize) -> Placement {
    // Workers are started only in a round that was formed, and it has this many of this node.
    let (round, master) = agent.current.formed.as_ref().expect("workers are started in a round");
    let ranks = round.ranks_of(worker).expect("the round has all workers of this node");
    Placement {
        rank: ranks.rank,
        local_rank: worker,
        world_size: round.world_size,
        local_world_size: agent.config.local_world_size,
        group_rank: round.group_rank,
        group_world_size: round.nodes,
        role_rank: ranks.role_rank,
        role_world_size: ranks.role_world_size,
        restart_count: agent.config.max_restarts - agent.machine.restarts_left(),
        master_addr: master.host.clone(),
        master_port: master.port,
        error_file: folder.error_file(worker),
    }
}

/// What the report tells of the workers that ended, in the order of their deaths.
pub(super) fn failures(agent: &Agent<'_>) -> Vec<Failure> {
    let deaths = agent.current.deaths.iter().filter(|death| !death.died.exit.success());
    deaths.map(|death| Failure::of(told(agent, death), &agent.hostname)).collect()
}

fn told(agent: &Agent<'_>, death: &Death) -> report::Death {
    let worker = death.died.index;
    let tail = |stream| agent.current.outputs.as_ref().map_or_else(Vec::new, |outputs| outputs.tail(worker, stream));
    let (stderr, stdout) = (tail(Stream::Stderr), tail(Stream::Stdout));
    report::Death {
        rank: agent.rank_of(worker),
        local_rank: worker,
        pid: death.died.pid,
        exitcode: death.died.exit.torch_code(),
        started: agent.current.started.get(worker).copied().unwrap_or(death.died.wall),
        at: death.died.wall,
        stopped: death.stopped,
        not_started: match &death.died.exit {
            Exit::NotStarted(why) => Some(why.clone()),
            _ => None,
        },
        error_file: agent.current.error_files.get(worker).cloned().flatten(),
        tail: if stderr.is_empty() { stdout } else { stderr },
    }
}

/// What other nodes are told of the worker at fault.
pub(super) fn root_cause(failure: &Failure, host: &str) -> RootCause {
    RootCause {
        rank: failure.death.rank,
        local_rank: failure.death.local_rank,
        host: host.to_owned(),
        pid: failure.death.pid,
        exit_code: failure.death.exitcode,
        message: failure.traceback().lines().last().unwrap_or_default().to_owned(),
    }
}
