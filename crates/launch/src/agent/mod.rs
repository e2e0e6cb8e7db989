//! The agent of one node: finds the other agents, starts its workers, watches and restarts them, and reports.
//!
//! - [`state_machine`]: which actions follow which events; pure.
//! - [`run`]: the loop that waits for all events and executes the actions of the state machine.
//! - [`endpoint`], [`master`]: the stores of the agents and of their workers.
//! - [`membership`]: this node's part in the rendezvous, as a task.
//! - [`live_status`]: the status line on a terminal.
//! - [`log`]: the log messages that LOGLEVEL selects.
//! - [`disconnect_monitor`]: disconnected nodes, on the host of the store.
//! - [`workers`]: the workers of an attempt, between configuration and report.
//! - [`diagnostic_input`]: the known facts when the nodes do not meet, for [`crate::diagnose`].

mod diagnostic_input;
mod disconnect_monitor;
mod endpoint;
mod live_status;
mod log;
mod master;
mod membership;
mod run;
mod state_machine;
mod workers;

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use lockstep_events::{AgentEvent, AgentSink};

use self::disconnect_monitor::DisconnectMonitor;
use self::endpoint::{Host, RendezvousStore};
use self::live_status::LiveStatus;
use self::master::{Master, StoreHosting};
use self::membership::{Limits, Membership};
use self::run::{Agent, Current};
use self::state_machine::{Outcome, StateMachine};
use crate::config::{Backend, Config, LogDir, Rendezvous as Place};
use crate::diagnose::{Batch, tail_hint};
use crate::output::{Console, Stream};
use crate::process::{SignalStream, Workers, find_program, raise_open_files};
use crate::rendezvous::{Job, Node, Options, Rendezvous, TcpStore};
use crate::report::{Report, propagate_agent_error, propagate_error};

/// How long the last lines may take on a console that does not accept them.
const LAST_LINES: Duration = Duration::from_secs(5);
/// torch's default of `read_timeout`: if it was not changed, connecting may take as long as joining.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// How a job ended on this node. All messages have been printed to stderr by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All workers of the job succeeded.
    Succeeded,
    /// There was a failure, or a signal stopped the job.
    Failed,
}

/// Runs the job that `config` describes to its end on this node. Call it on the process's main thread, after
/// [`crate::process::helper`].
///
/// # Errors
/// When the job could not start here: the program, the log folder or the rendezvous is not available.
pub fn run(config: &Config) -> anyhow::Result<Verdict> {
    find_program(&config.program.file, std::env::var_os("PATH").as_deref())?;
    let before = raise_open_files(config.local_world_size, workers::open_files(config))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot start the agent's runtime")?;
    let verdict = runtime.block_on(on_this_node(config, before));
    // A name service that does not answer must not delay the exit.
    runtime.shutdown_background();
    verdict
}

/// Workers get the limit of open files from `before` it was raised.
async fn on_this_node(config: &Config, before: Option<u64>) -> anyhow::Result<Verdict> {
    let mut signals = SignalStream::listen(&config.signals.numbers)?;
    let console = Console::of_this_process().context("cannot use stdout and stderr")?;
    let hostname = rustix::system::uname().nodename().to_string_lossy().into_owned();
    log::to(&console);
    let (options, unread) = options(config)?;
    for key in unread {
        console.line(Stream::Stderr, format!("note: {key}").as_bytes());
    }
    let met = tokio::select! {
        met = meet(config, &options, &hostname, &console) => met?,
        signal = signals.next() => bail!("stopped by {} while looking for the rendezvous", crate::process::signal_name(signal)),
    };
    let mut workers = Workers::new().context("cannot prepare for workers")?;
    workers.limit_open_files(before);
    let logs = match LogDir::create(&config.logs, &config.rendezvous.run_id) {
        Ok(logs) => logs,
        Err(error) => {
            workers.close();
            return Err(error.into());
        }
    };
    if let Some(folder) = logs.temporary() {
        workers.entrust(folder);
    }
    let (node, hosting, keeps_store) = (met.node(config, &hostname), met.hosting, met.server);
    let folder = std::env::var_os(lockstep_events::FOLDER).filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let events = events(&hostname, folder.as_deref(), &console);
    let status = LiveStatus::on(config, &console, folder, logs.path());
    let rendezvous = Rendezvous::new(met.store, node, job(config), options.clone());
    let reasons = rendezvous.reasons();
    // A single node has no peers to monitor.
    let others = keeps_store.clone().filter(|_| config.nodes.max > 1);
    // Beginning its wait costs a node one request, like a heartbeat.
    let (run_id, grace) = (&config.rendezvous.run_id, options.heartbeat_timeout);
    let disconnect_monitor =
        others.map(|server| DisconnectMonitor::start(&server, run_id, grace, rendezvous.disconnects()));
    let limits = Limits { master: options.read_timeout, exit_barrier: config.exit_barrier_timeout };
    let mut agent = Agent {
        config,
        machine: StateMachine::new(config.max_restarts),
        workers,
        membership: Membership::start(rendezvous, hosting, limits),
        disconnect_monitor,
        signals,
        console,
        logs,
        events,
        hostname,
        diagnostic_input: diagnostic_input::DiagnosticInput { endpoint: met.endpoint, server: keeps_store.clone() },
        status,
        reasons,
        say_reason_at: None,
        current: Current::default(),
        pending: None,
    };
    let outcome = agent.live().await;
    let verdict = end(agent, outcome).await;
    // The other nodes may need the store until the very end.
    drop(keeps_store);
    Ok(verdict)
}

/// Reports, announces the end to the other nodes, and cleans up.
async fn end(mut agent: Agent<'_>, outcome: Outcome) -> Verdict {
    let succeeded = outcome == Outcome::Succeeded;
    agent.events.emit(&AgentEvent::Finished { code: i32::from(!succeeded) });
    let kept = agent.logs.path().filter(|_| agent.logs.stays(succeeded)).map(Path::to_owned);
    report(&mut agent, &outcome, kept.as_deref());
    let Agent { membership, mut signals, workers, console, logs, status, .. } = agent;
    if let Some(status) = status {
        status.finish();
    }
    tokio::select! {
        // A second stop signal ends all waiting.
        _ = signals.next() => {}
        left = membership.finish() => for node in left {
            console.line(Stream::Stderr, format!("lockstep: {node} has not announced its end; the store that it used closes now").as_bytes());
        }
    }
    if let Some(folder) = logs.temporary().map(Path::to_owned) {
        let mut workers = workers;
        if let Err(error) = logs.finish(succeeded) {
            console.line(
                Stream::Stderr,
                format!("lockstep: cannot remove the logs in {}: {error}", folder.display()).as_bytes(),
            );
        }
        workers.release(&folder);
        workers.close();
    } else {
        workers.close();
    }
    console.flush(LAST_LINES);
    if succeeded { Verdict::Succeeded } else { Verdict::Failed }
}

/// Prints to stderr how the job ended, unless it succeeded.
fn report(agent: &mut Agent<'_>, outcome: &Outcome, logs: Option<&Path>) {
    let failures = std::mem::take(&mut agent.current.failures);
    match outcome {
        Outcome::Succeeded => return,
        Outcome::Signalled(signal) => agent.say(&format!("ended by {}", crate::process::signal_name(*signal))),
        Outcome::Failed(why) => agent.say(&format!("failed: {why}")),
        Outcome::WorkersFailed => {}
    }
    let own = std::env::var_os("TORCHELASTIC_ERROR_FILE").filter(|path| !path.is_empty()).map(PathBuf::from);
    let Some(mut report) = Report::new(&agent.config.program.name, failures) else {
        let why = match outcome {
            Outcome::Signalled(signal) => anyhow::anyhow!("ended by {}", crate::process::signal_name(*signal)),
            Outcome::Failed(why) => anyhow::anyhow!("{why}"),
            Outcome::Succeeded | Outcome::WorkersFailed => return,
        };
        return leave(agent, own.as_deref(), |path| propagate_agent_error(&why, path));
    };
    report.logs = logs.map(Path::to_owned);
    report.hint = tail_hint(&report.root().death.tail).map(|hint| format!("{}: {}", hint.what, hint.advice));
    agent.console.line(Stream::Stderr, report.to_string().as_bytes());
    leave(agent, own.as_deref(), |path| propagate_error(report.root(), path));
}

/// Writes the cause to the error file of the process that started this agent.
fn leave(agent: &Agent<'_>, path: Option<&Path>, write: impl FnOnce(&Path) -> std::io::Result<()>) {
    if let Some(path) = path
        && let Err(error) = write(path)
    {
        agent.say(&format!("cannot write the root cause to {}: {error}", path.display()));
    }
}

/// The options of `--rdzv-conf`, with a notice for each unknown key.
fn options(config: &Config) -> anyhow::Result<(Options, Vec<String>)> {
    let conf = &config.rendezvous.conf;
    Ok(match config.rendezvous.backend {
        Backend::Static { .. } => Options::from_static_conf(conf)?,
        Backend::C10d => Options::from_conf(conf)?,
    })
}

/// An open rendezvous store, and the facts that follow from its location.
struct Met {
    store: TcpStore,
    server: Option<Arc<tcpstore::Server>>,
    endpoint: Master,
    hosting: StoreHosting,
    /// The name of this machine for other nodes.
    name: String,
}

async fn meet(config: &Config, options: &Options, hostname: &str, console: &Console) -> anyhow::Result<Met> {
    let place = &config.rendezvous;
    let wanted = Master { host: place.endpoint.host.clone(), port: place.endpoint.port };
    let say = |line: &str| console.line(Stream::Stderr, format!("lockstep: {line}").as_bytes());
    let meeting = async {
        let addresses = if place.standalone {
            vec![(Ipv4Addr::LOCALHOST, wanted.port).into()]
        } else {
            endpoint::resolve(&wanted.host, wanted.port).await?
        };
        endpoint::meet(&wanted, &addresses, host(place, options, &addresses), patience(options), say).await
    };
    let meeting = meeting.await.map_err(|error| anyhow::anyhow!(diagnostic_input::not_met(error, &wanted)))?;
    let interface = local_interface(place, &meeting).await?;
    let name = match &place.local_addr {
        Some(name) => name.clone(),
        None => endpoint::name_for(interface, hostname).await,
    };
    let RendezvousStore { client, server, endpoint, unspecified, .. } = meeting;
    // Other nodes' workers need a name that resolves to this machine.
    let endpoint = if unspecified { Master { host: name.clone(), ..endpoint } } else { endpoint };
    let hosting = hosting(place, name.clone(), interface, &endpoint, server.clone());
    Ok(Met { store: TcpStore::from(client), server, endpoint, hosting, name })
}

fn hosting(
    place: &Place,
    host: String,
    interface: IpAddr,
    endpoint: &Master,
    server: Option<Arc<tcpstore::Server>>,
) -> StoreHosting {
    match place.backend {
        Backend::Static { .. } => {
            StoreHosting::Shared { master: endpoint.clone(), server, agents_prefix: "lockstep/".to_owned() }
        }
        Backend::C10d => StoreHosting::Own { host, interface, server: None },
    }
}

/// The address on which this node hosts the workers' store: `--local-addr`, otherwise the one on the route to the
/// rendezvous.
async fn local_interface(place: &Place, meeting: &RendezvousStore) -> anyhow::Result<IpAddr> {
    let Some(name) = &place.local_addr else { return Ok(meeting.interface) };
    let found = endpoint::resolve(name, 0).await.ok().unwrap_or_default();
    let own = found.iter().map(std::net::SocketAddr::ip).find(|address| endpoint::is_local(*address));
    if own.is_some_and(|address| address.is_unspecified()) {
        bail!(
            "--local-addr is {name}, which stands for all addresses of this machine: give the one that other nodes reach, see `ip -brief address`"
        );
    }
    own.with_context(|| {
        format!("--local-addr is {name}, which is not an address of this machine: see `ip -brief address`")
    })
}

fn host(place: &Place, options: &Options, addresses: &[std::net::SocketAddr]) -> Host {
    match place.backend {
        Backend::Static { node_rank: 0 } => Host::Me,
        Backend::Static { .. } => Host::Other,
        Backend::C10d if place.standalone => Host::Me,
        Backend::C10d => endpoint::host_of(addresses, options.is_host),
    }
}

fn patience(options: &Options) -> Duration {
    if options.read_timeout == READ_TIMEOUT {
        options.join_timeout
    } else {
        options.read_timeout.min(options.join_timeout)
    }
}

impl Met {
    fn node(&self, config: &Config, hostname: &str) -> Node {
        Node {
            id: 0,
            host: hostname.to_owned(),
            addr: self.name.clone(),
            pid: std::process::id(),
            local_world_size: config.local_world_size,
            role: config.role.clone(),
            hosts_store: self.server.is_some(),
            node_rank: match config.rendezvous.backend {
                Backend::Static { node_rank } => Some(node_rank),
                Backend::C10d => None,
            },
        }
    }
}

fn job(config: &Config) -> Job {
    let place = &config.rendezvous;
    Job {
        run_id: place.run_id.clone(),
        min_nodes: config.nodes.min,
        max_nodes: config.nodes.max,
        backend: place.backend.name().to_owned(),
        user: user(),
        batch: Batch::here().map(|batch| batch.name()),
        commands: [(config.role.clone(), config.program.command())].into(),
    }
}

/// The user's number: names may differ between nodes.
fn user() -> String {
    format!("uid {}", rustix::process::getuid().as_raw())
}

fn events(hostname: &str, folder: Option<&Path>, console: &Console) -> AgentSink {
    let Some(folder) = folder else { return AgentSink::default() };
    let node = format!("{hostname}-{}", std::process::id());
    AgentSink::open(folder, &node).unwrap_or_else(|error| {
        let warning = format!("warning: {error}; the agent runs without an event file");
        console.line(Stream::Stderr, warning.as_bytes());
        AgentSink::default()
    })
}
