//! The agent of one node: meets the others, starts its workers, watches over them, starts them anew, and reports.
//!
//! - [`machine`]: what follows what; pure.
//! - [`run`]: the loop that waits for everything at once and does what the machine wants.
//! - [`endpoint`], [`master`]: where agents meet, and where their workers do.
//! - [`membership`]: this node's part in the rendezvous, as a task.
//! - [`live_status`]: the line on a terminal that tells how the job is.
//! - [`log`]: what LOGLEVEL asks for beyond that.
//! - [`lookout`]: who has gone, as the host of the store sees it.
//! - [`workers`]: an attempt's workers in the words of configuration and report.
//! - [`waits`]: waits for deaths and signals in the runtime.
//! - [`observe`]: what is known when the nodes do not meet, for [`crate::diagnose`].

mod endpoint;
mod live_status;
mod log;
mod lookout;
mod machine;
mod master;
mod membership;
mod observe;
mod run;
mod waits;
mod workers;

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use lockstep_events::{AgentEvent, AgentSink};
use lockstep_process::{Workers, find_program, raise_open_files, signal_name};

use self::endpoint::{Host, Meeting};
use self::live_status::LiveStatus;
use self::lookout::Lookout;
use self::machine::{Machine, Outcome};
use self::master::{Master, Site};
use self::membership::{Limits, Membership};
use self::run::{Agent, Current};
use self::waits::SignalStream;
use crate::config::{Backend, Config, LogDir, Rendezvous as Place};
use crate::diagnose::{Batch, tail_hint};
use crate::output::{Console, Stream};
use crate::rendezvous::{Job, Node, Options, Rendezvous, TcpStore};
use crate::report::{Report, hand_up, hand_up_error};

/// How long the last lines may take to reach a console that does not take them.
const LAST_LINES: Duration = Duration::from_secs(5);
/// torch's default of `read_timeout`: where it was not changed, connecting may take as long as joining.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// How a job ended on this node. Everything has been told on stderr by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All workers of the job succeeded.
    Succeeded,
    /// Something failed, or a signal asked for an end.
    Failed,
}

/// Runs the job that `config` describes to its end on this node. To be called on the process's main thread, once
/// [`lockstep_process::helper`] had its turn.
///
/// # Errors
/// When the job could not be begun here: the program, the log folder or the rendezvous is not to be had.
pub fn run(config: &Config) -> anyhow::Result<Verdict> {
    find_program(&config.program.file, std::env::var_os("PATH").as_deref())?;
    let before = raise_open_files(config.local_world_size, workers::open_files(config))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot start the agent's runtime")?;
    let verdict = runtime.block_on(on_this_node(config, before));
    // A name service that does not answer must not hold up the end.
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
        signal = signals.next() => bail!("stopped by {} while looking for the rendezvous", signal_name(signal)),
    };
    let mut workers = Workers::new().context("cannot prepare for workers")?;
    let ready = waits::ready(&workers).context("cannot watch over workers")?;
    workers.limit_open_files(before);
    let logs = match LogDir::create(&config.logs, &config.rendezvous.run_id) {
        Ok(logs) => logs,
        Err(error) => {
            workers.close();
            return Err(error.into());
        }
    };
    if let Some(folder) = logs.temporary() {
        workers.register_cleanup(folder);
    }
    let (node, site, keeps_store) = (met.node(config, &hostname), met.site, met.server);
    let folder = std::env::var_os(lockstep_events::FOLDER).filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let events = events(&hostname, folder.as_deref(), &console);
    let status = LiveStatus::on(config, &console, folder, logs.path());
    let rendezvous = Rendezvous::new(met.store, node, job(config), options.clone());
    let reasons = rendezvous.reasons();
    // One node alone has nobody to miss.
    let others = keeps_store.clone().filter(|_| config.nodes.max > 1);
    // To begin its wait costs a node one request, as a heartbeat does.
    let (run_id, grace) = (&config.rendezvous.run_id, options.heartbeat_timeout);
    let lookout = others.map(|server| Lookout::start(&server, run_id, grace, rendezvous.closings()));
    let limits = Limits { master: options.read_timeout, exit_barrier: config.exit_barrier_timeout };
    let mut agent = Agent {
        config,
        machine: Machine::new(config.max_restarts),
        workers,
        ready,
        membership: Membership::start(rendezvous, site, limits),
        lookout,
        signals,
        console,
        logs,
        events,
        hostname,
        seen: observe::Seen { endpoint: met.endpoint, server: keeps_store.clone() },
        status,
        reasons,
        say_reason_at: None,
        current: Current::default(),
        pending: None,
    };
    let outcome = agent.live().await;
    let verdict = end(agent, outcome).await;
    // The others may need the store until the very end.
    drop(keeps_store);
    Ok(verdict)
}

/// Reports, says farewell to the other nodes, and cleans up.
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
        // A second request to end is not made to wait for anybody.
        _ = signals.next() => {}
        left = membership.finish() => for node in left {
            console.line(Stream::Stderr, format!("lockstep: {node} has not said that it has ended; its store ends now").as_bytes());
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
        workers.unregister_cleanup(&folder);
        workers.close();
    } else {
        workers.close();
    }
    console.flush(LAST_LINES);
    if succeeded { Verdict::Succeeded } else { Verdict::Failed }
}

/// Tells on stderr how it ended, if not well.
fn report(agent: &mut Agent<'_>, outcome: &Outcome, logs: Option<&Path>) {
    let failures = std::mem::take(&mut agent.current.failures);
    match outcome {
        Outcome::Succeeded => return,
        Outcome::Signalled(signal) => agent.say(&format!("ended by {}", signal_name(*signal))),
        Outcome::Failed(why) => agent.say(&format!("failed: {why}")),
        Outcome::WorkersFailed => {}
    }
    let own = std::env::var_os("TORCHELASTIC_ERROR_FILE").filter(|path| !path.is_empty()).map(PathBuf::from);
    let Some(mut report) = Report::new(&agent.config.program.name, failures) else {
        let why = match outcome {
            Outcome::Signalled(signal) => anyhow::anyhow!("ended by {}", signal_name(*signal)),
            Outcome::Failed(why) => anyhow::anyhow!("{why}"),
            Outcome::Succeeded | Outcome::WorkersFailed => return,
        };
        return leave(agent, own.as_deref(), |path| hand_up_error(&why, path));
    };
    report.logs = logs.map(Path::to_owned);
    report.hint = tail_hint(&report.root().death.tail).map(|hint| format!("{}: {}", hint.what, hint.advice));
    agent.console.line(Stream::Stderr, report.to_string().as_bytes());
    leave(agent, own.as_deref(), |path| hand_up(report.root(), path));
}

/// Leaves the cause for whoever started this agent, where that one looks for it.
fn leave(agent: &Agent<'_>, path: Option<&Path>, write: impl FnOnce(&Path) -> std::io::Result<()>) {
    if let Some(path) = path
        && let Err(error) = write(path)
    {
        agent.say(&format!("cannot write the root cause to {}: {error}", path.display()));
    }
}

/// What `--rdzv-conf` says, and a word on each key of it that nobody reads.
fn options(config: &Config) -> anyhow::Result<(Options, Vec<String>)> {
    let conf = &config.rendezvous.conf;
    Ok(match config.rendezvous.backend {
        Backend::Static { .. } => Options::from_static_conf(conf)?,
        Backend::C10d => Options::from_conf(conf)?,
    })
}

/// An open rendezvous, and what follows from where it is.
struct Met {
    store: TcpStore,
    server: Option<Arc<tcpstore::Server>>,
    endpoint: Master,
    site: Site,
    /// What the others call this machine.
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
    let meeting = meeting.await.map_err(|error| anyhow::anyhow!(observe::not_met(error, &wanted)))?;
    let interface = local_interface(place, &meeting).await?;
    let name = match &place.local_addr {
        Some(name) => name.clone(),
        None => endpoint::name_for(interface, hostname).await,
    };
    let Meeting { client, server, endpoint, unspecified, .. } = meeting;
    // Other nodes' workers need a name that leads here.
    let endpoint = if unspecified { Master { host: name.clone(), ..endpoint } } else { endpoint };
    let site = site(place, name.clone(), interface, &endpoint, server.clone());
    Ok(Met { store: TcpStore::from(client), server, endpoint, site, name })
}

fn site(
    place: &Place,
    host: String,
    interface: IpAddr,
    endpoint: &Master,
    server: Option<Arc<tcpstore::Server>>,
) -> Site {
    match place.backend {
        Backend::Static { .. } => {
            Site::Shared { master: endpoint.clone(), server, agents_prefix: "lockstep/".to_owned() }
        }
        Backend::C10d => Site::Own { host, interface, server: None },
    }
}

/// Where this node would host the workers' store: `--local-addr`, else where it reaches the rendezvous from.
async fn local_interface(place: &Place, meeting: &Meeting) -> anyhow::Result<IpAddr> {
    let Some(name) = &place.local_addr else { return Ok(meeting.interface) };
    let found = endpoint::resolve(name, 0).await.ok().unwrap_or_default();
    let own = found.iter().map(std::net::SocketAddr::ip).find(|address| endpoint::is_local(*address));
    if own.is_some_and(|address| address.is_unspecified()) {
        bail!(
            "--local-addr is {name}, which stands for all addresses of this machine: give the one that other nodes reach, see `ip -brief address`"
        );
    }
    own.with_context(|| format!("--local-addr is {name}, which is no address of this machine: see `ip -brief address`"))
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

/// The number of the user: names may differ from node to node.
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
