//! Opens the rendezvous store and derives from the configuration what this node announces there. If the nodes do not meet, collects
//! the facts for [`crate::diagnose`].

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tcpstore::Server;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::endpoint::{self, Host, NoRendezvousStore, RendezvousStore};
use super::master::{Master, StoreHosting};
use crate::config::{Backend, Config, Rendezvous as RendezvousConfig};
use crate::diagnose::{ConnectFailure, Observed, diagnose, port_owner};
use crate::output::Console;
use crate::rendezvous::{JobIdentity, Link, Node, Place, Rendezvous, RendezvousError, RendezvousOptions};
use crate::scheduler::Allocation;
use crate::verdict::LaunchFailure;

/// torch's default of `read_timeout`: if it was not changed, connecting may take as long as joining.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// The options of `--rdzv-conf`, with a notice for each unknown key.
pub(super) fn options(config: &Config) -> anyhow::Result<(RendezvousOptions, Vec<String>)> {
    let conf = &config.rendezvous.conf;
    Ok(match config.rendezvous.backend {
        Backend::Static { .. } => RendezvousOptions::from_static_conf(conf)?,
        Backend::C10d => RendezvousOptions::from_conf(conf)?,
    })
}

/// The way to the rendezvous' authority, and the facts that follow from its location.
pub(super) struct Met {
    /// `None` if the authority is in this process.
    client: Option<tcpstore::Client>,
    pub(super) server: Option<Arc<tcpstore::Server>>,
    pub(super) endpoint: Master,
    pub(super) hosting: StoreHosting,
    /// The name of this machine for other nodes.
    name: String,
    /// The address of this machine through which the other nodes reach it.
    pub(super) interface: IpAddr,
    /// Where this agent can take over from one that hosts the rendezvous elsewhere.
    listener: Option<TcpListener>,
}

/// Opens the rendezvous store.
pub(super) async fn meet(
    config: &Config,
    options: &RendezvousOptions,
    hostname: &str,
    console: &Console,
) -> anyhow::Result<Met> {
    let place = &config.rendezvous;
    let wanted = Master { host: place.endpoint.host.clone(), port: place.endpoint.port };
    let say = |line: &str| console.say(line);
    let meeting = async {
        if place.standalone {
            // No other node joins.
            let interface = Ipv4Addr::LOCALHOST.into();
            let (client, server, endpoint) = (None, None, wanted.clone());
            return Ok(RendezvousStore { client, server, endpoint, interface, unspecified: false });
        }
        let addresses = endpoint::resolve(&wanted.host, wanted.port).await?;
        let host = host(place, options, &addresses);
        let addresses = if host == Host::Other || config.nodes.max == 1 {
            addresses
        } else {
            endpoint::to_listen_on(&wanted.host, hostname, addresses)
        };
        // Another agent of this machine may still come.
        let is_loopback = host == Host::Other && addresses.iter().all(|address| address.ip().is_loopback());
        let why = if is_loopback { format!("; {}", only_here(&wanted)) } else { String::new() };
        endpoint::meet(&wanted, &addresses, host, patience(options), |line| say(&format!("{line}{why}"))).await
    };
    let meeting = meeting.await.map_err(|error| not_met(error, &wanted))?;
    let interface = local_interface(place, &meeting).await?;
    let name = match &place.local_addr {
        Some(name) => name.clone(),
        None => endpoint::name_for(interface, hostname).await,
    };
    let RendezvousStore { client, server, endpoint, unspecified, .. } = meeting;
    // Other nodes' workers need a name that resolves to this machine.
    let endpoint = if unspecified { Master { host: name.clone(), ..endpoint } } else { endpoint };
    let hosting = hosting(place, name.clone(), interface, &endpoint, server.clone());
    let may_take_over = options.takeover && config.nodes.max > 1 && client.is_some();
    let listener = match place.backend {
        Backend::C10d if may_take_over => TcpListener::bind((interface, 0)).await.ok(),
        Backend::C10d | Backend::Static { .. } => None,
    };
    Ok(Met { client, server, endpoint, hosting, name, interface, listener })
}

fn hosting(
    place: &RendezvousConfig,
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
async fn local_interface(place: &RendezvousConfig, meeting: &RendezvousStore) -> anyhow::Result<IpAddr> {
    let Some(name) = &place.local_addr else { return Ok(meeting.interface) };
    let found = endpoint::resolve(name, 0).await.ok().unwrap_or_default();
    let own = found.iter().map(SocketAddr::ip).find(|address| endpoint::is_local(*address));
    if own.is_some_and(|address| address.is_unspecified()) {
        bail!(
            "--local-addr is {name}, which stands for all addresses of this machine: give the one that other nodes reach, see `ip -brief address`"
        );
    }
    own.with_context(|| {
        format!("--local-addr is {name}, which is not an address of this machine: see `ip -brief address`")
    })
}

fn host(place: &RendezvousConfig, options: &RendezvousOptions, addresses: &[SocketAddr]) -> Host {
    match place.backend {
        Backend::Static { node_rank: 0 } => Host::Me,
        Backend::Static { .. } => Host::Other,
        Backend::C10d => endpoint::host_of(addresses, options.is_host),
    }
}

fn patience(options: &RendezvousOptions) -> Duration {
    if options.read_timeout == READ_TIMEOUT {
        options.join_timeout
    } else {
        options.read_timeout.min(options.join_timeout)
    }
}

impl Met {
    /// The link to the authority.
    pub(super) fn link(&mut self, job: &JobIdentity, options: &RendezvousOptions) -> Link {
        match self.client.take() {
            Some(client) => Link::connect(client, job, options, self.listener.take()),
            None => Link::host(self.endpoint.to_string(), job, options, self.server.as_ref()),
        }
    }

    pub(super) fn node(&self, config: &Config, hostname: &str) -> Node {
        Node {
            id: 0,
            host: hostname.to_owned(),
            addr: self.name.clone(),
            pid: std::process::id(),
            local_world_size: config.local_world_size,
            role: config.role.clone(),
            hosts_store: self.client.is_none(),
            port: self.listener.as_ref().and_then(|listener| listener.local_addr().ok()).map(|address| address.port()),
            node_rank: match config.rendezvous.backend {
                Backend::Static { node_rank } => Some(node_rank),
                Backend::C10d => None,
            },
        }
    }
}

pub(super) fn job(config: &Config, batch: Option<&Allocation>) -> JobIdentity {
    let place = &config.rendezvous;
    JobIdentity {
        run_id: place.run_id.clone(),
        min_nodes: config.nodes.min,
        max_nodes: config.nodes.max,
        backend: place.backend.name().to_owned(),
        user: user(),
        batch: batch.map(Allocation::name),
        commands: [(config.role.clone(), config.program.command())].into(),
    }
}

/// The user's number: names may differ between nodes.
fn user() -> String {
    format!("uid {}", rustix::process::getuid().as_raw())
}

/// How long the rendezvous may wait for the same thing before the agent prints it.
const QUIET: Duration = Duration::from_secs(3);
/// The same where other machines cannot come: long enough for other agents of this one.
const SOON: Duration = Duration::from_secs(1);

/// What is printed while the rendezvous waits for other nodes.
pub(super) struct RendezvousWait {
    endpoint: Master,
    /// The rendezvous store, only on the agent that hosts it.
    server: Option<Arc<Server>>,
    /// What the rendezvous waits for, as text.
    reasons: watch::Receiver<String>,
    place: watch::Receiver<Place>,
    /// When the reason is printed, unless it has changed by then.
    pub(super) say_at: Option<Instant>,
}

impl RendezvousWait {
    pub(super) fn new(rendezvous: &Rendezvous, endpoint: Master, server: Option<Arc<Server>>) -> Self {
        RendezvousWait { endpoint, server, reasons: rendezvous.reasons(), place: rendezvous.place(), say_at: None }
    }

    /// Waits until the rendezvous moves or waits for something else. Returns a line to print at once. Cancel safe. `is_first` before the
    /// first round.
    pub(super) async fn changed(&mut self, is_first: bool) -> Option<String> {
        tokio::select! {
            biased;
            Ok(()) = self.place.changed() => self.note_place(),
            Ok(()) = self.reasons.changed() => {
                let quiet = if self.only_here(is_first).is_some() { SOON } else { QUIET };
                self.say_at = Some(Instant::now() + quiet);
                None
            }
            else => std::future::pending().await,
        }
    }

    /// The rendezvous goes on elsewhere: what this agent prints names that place.
    fn note_place(&mut self) -> Option<String> {
        let Place { address, succeeds } = self.place.borrow_and_update().clone();
        if let Ok(endpoint) = address.parse() {
            self.endpoint = endpoint;
        }
        succeeds.map(|lost| format!("{lost} was lost; this agent hosts the rendezvous now, at {address}"))
    }

    /// What the rendezvous has been waiting for.
    pub(super) fn reason(&mut self, is_first: bool) -> String {
        let reason = self.reasons.borrow_and_update().clone();
        let only_here = self.only_here(is_first).map(|why| format!("; {why}")).unwrap_or_default();
        format!("waiting for other nodes at {}: {reason}{only_here}", self.endpoint)
    }

    /// Why nodes of other machines cannot come to the first round; `None` if they can.
    fn only_here(&self, is_first: bool) -> Option<String> {
        let address = self.server.as_ref()?.local_addr();
        (is_first && address.ip().is_loopback()).then(|| only_here(&self.endpoint))
    }

    /// Why no round formed, with all facts that may explain it.
    pub(super) fn not_formed(&self, error: RendezvousError) -> LaunchFailure {
        let absence = match error {
            RendezvousError::Timeout(absence) => absence,
            RendezvousError::Refused(_) | RendezvousError::Finished => return LaunchFailure::new(error.to_string()),
            RendezvousError::Closed(_)
            | RendezvousError::StoreLost(_)
            | RendezvousError::Changed(_)
            | RendezvousError::NoMaster { .. } => return LaunchFailure::noticed(error.to_string()),
        };
        let refusals = self.server.as_ref().map(|server| server.refusals()).unwrap_or_default();
        let seen = Observed {
            is_host: self.server.is_some(),
            absence: Some(*absence),
            refused: refusals.iter().map(|refusal| (refusal.address.to_string(), refusal.reason.clone())).collect(),
            ..known_of(&self.endpoint)
        };
        LaunchFailure::from(diagnose(&seen))
    }
}

/// Why the rendezvous store could not be opened.
pub(super) fn not_met(error: NoRendezvousStore, endpoint: &Master) -> LaunchFailure {
    let seen = match error {
        NoRendezvousStore::Unresolved { why } => {
            Observed { connect: Some(ConnectFailure::Unresolved { error: why }), ..known_of(endpoint) }
        }
        NoRendezvousStore::NotHosted { address, why } if why.kind() == std::io::ErrorKind::AddrInUse => {
            Observed { is_host: true, port_owner: port_owner(address.port()), ..known_of(endpoint) }
        }
        NoRendezvousStore::NotHosted { address, why } => {
            return LaunchFailure::new(format!("cannot host the rendezvous on {address}: {why}"));
        }
        NoRendezvousStore::NotReached { endpoint, error } => Observed {
            connect: Some(error.as_ref().into()),
            port_owner: port_owner(endpoint.port),
            ..known_of(&endpoint)
        },
    };
    LaunchFailure::from(diagnose(&seen))
}

fn only_here(endpoint: &Master) -> String {
    let own = endpoint::first_interface().map_or_else(|| "HOST".to_owned(), |own| own.to_string());
    format!(
        "other machines cannot reach {}, which is each machine's own loopback address: on all nodes, name the first node's as they know it, \
         such as --rdzv-endpoint={own}:{} for this one",
        endpoint.host, endpoint.port
    )
}

/// The facts about an endpoint that are always known.
fn known_of(endpoint: &Master) -> Observed {
    let resolved = std::net::ToSocketAddrs::to_socket_addrs(&(endpoint.host.as_str(), endpoint.port));
    let resolved: Vec<SocketAddr> = resolved.map(Iterator::collect).unwrap_or_default();
    Observed {
        endpoint: endpoint.to_string(),
        resolved: resolved.iter().map(SocketAddr::ip).collect(),
        batch: Allocation::batch_job(),
        ..Observed::default()
    }
}
