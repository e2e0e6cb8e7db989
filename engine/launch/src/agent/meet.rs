//! Opens the rendezvous store and derives from the configuration what this node announces there. If the nodes do not meet, collects
//! the facts for [`crate::diagnose`].
//!
//! Node rank 0 hosts a static rendezvous. A c10d rendezvous is hosted by the agent on the endpoint's machine, the first
//! if there are several (`_create_tcp_store` of torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py).
//! [`crate::diagnose`] explains failures.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use getifaddrs::getifaddrs;
use tcpstore::{Client, ClientOptions, Error, Kind, Server};
use tokio::net::{TcpListener, lookup_host};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::membership::{Master, StoreHosting, host_on};
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
        let addresses = resolve(&wanted.host, wanted.port).await?;
        let host = host(place, options, &addresses);
        let addresses = if host == Host::Other || config.nodes.max == 1 {
            addresses
        } else {
            to_listen_on(&wanted.host, hostname, addresses)
        };
        // Another agent of this machine may still come.
        let is_loopback = host == Host::Other && addresses.iter().all(|address| address.ip().is_loopback());
        let why = if is_loopback { format!("; {}", only_here(&wanted)) } else { String::new() };
        open_store(&wanted, &addresses, host, patience(options), |line| say(&format!("{line}{why}"))).await
    };
    let meeting = meeting.await.map_err(|error| not_met(error, &wanted))?;
    let interface = local_interface(place, &meeting).await?;
    let name = match &place.local_addr {
        Some(name) => name.clone(),
        None => name_for(interface, hostname).await,
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
    let found = resolve(name, 0).await.ok().unwrap_or_default();
    let own = found.iter().map(SocketAddr::ip).find(|address| is_local(*address));
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
        Backend::C10d => host_of(addresses, options.is_host),
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
/// The wait where other machines cannot come: long enough for other agents of this one.
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
fn not_met(error: NoRendezvousStore, endpoint: &Master) -> LaunchFailure {
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
    let own = first_interface().map_or_else(|| "HOST".to_owned(), |own| own.to_string());
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

/// How long to wait for a missing store before the first message, and between messages.
const SILENCE: Duration = Duration::from_secs(5);

/// How often an agent on the endpoint's machine tries to host the store while the port is taken and nobody answers there.
const AGAIN: Duration = Duration::from_millis(500);

/// Time limit for resolving this machine's own name. After that its address is used.
pub(super) const NAMED: Duration = Duration::from_secs(2);

/// Which agent hosts the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Host {
    /// This agent.
    Me,
    /// This agent, unless another one on this machine was first.
    MeIfFirst,
    /// Another agent.
    Other,
}

/// An open rendezvous store: the server if this agent hosts it, otherwise a client.
#[derive(Debug)]
struct RendezvousStore {
    pub(super) client: Option<Client>,
    pub(super) server: Option<Arc<Server>>,
    /// Its address, as the other nodes know it.
    pub(super) endpoint: Master,
    /// The address of this machine on the route to the store.
    pub(super) interface: IpAddr,
    /// True if the endpoint means all addresses of this machine (`0.0.0.0`), or this agent listens on all.
    pub(super) unspecified: bool,
}

/// Why the store could not be opened.
#[derive(Debug)]
enum NoRendezvousStore {
    /// The host name has no address.
    Unresolved { why: String },
    /// The port on this machine is not available.
    NotHosted { address: SocketAddr, why: io::Error },
    /// The store on another machine cannot be reached, or the listener is not a store.
    NotReached { endpoint: Master, error: Box<Error> },
}

/// The addresses of `host`, IPv4 first, as workers' libraries try them.
async fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, NoRendezvousStore> {
    let unresolved = |why: String| NoRendezvousStore::Unresolved { why };
    let found = lookup_host((host, port)).await.map_err(|error| unresolved(error.to_string()))?;
    let mut found: Vec<SocketAddr> = found.collect();
    found.sort_by_key(SocketAddr::is_ipv6);
    found.dedup();
    if found.is_empty() { Err(unresolved("it has no address".to_owned())) } else { Ok(found) }
}

/// Which agent hosts a c10d rendezvous at `addresses`, unless `is_host` of `--rdzv-conf` decides it.
fn host_of(addresses: &[SocketAddr], is_host: Option<bool>) -> Host {
    match is_host {
        Some(true) => Host::Me,
        Some(false) => Host::Other,
        None if addresses.iter().any(|address| is_local(address.ip())) => Host::MeIfFirst,
        None => Host::Other,
    }
}

/// Returns true if `address` belongs to this machine: if a socket can be bound to it.
fn is_local(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// Where this agent listens if it hosts the store at `name` for other nodes. If that is this machine's own name and resolves to
/// loopback, as with Debian's `/etc/hosts`, the agent listens on all addresses: other nodes know this machine by another one.
fn to_listen_on(name: &str, hostname: &str, addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let label = |name: &str| name.split('.').next().unwrap_or_default().to_ascii_lowercase();
    let is_own = label(name) == label(hostname) && label(name) != "localhost";
    match addresses.first() {
        Some(first) if is_own && addresses.iter().all(|address| address.ip().is_loopback()) => {
            vec![SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), first.port())]
        }
        _ => addresses,
    }
}

/// Hosts the store at `endpoint` or connects to it within `patience`; `tell` receives messages about the wait.
async fn open_store(
    endpoint: &Master,
    addresses: &[SocketAddr],
    host: Host,
    patience: Duration,
    tell: impl Fn(&str),
) -> Result<RendezvousStore, NoRendezvousStore> {
    let (client, server) = match host {
        Host::Me => {
            (None, Some(bind(addresses).map_err(|(address, why)| NoRendezvousStore::NotHosted { address, why })?))
        }
        Host::MeIfFirst | Host::Other => open(endpoint, addresses, host, patience, tell).await?,
    };
    let endpoint = match &server {
        Some(server) => Master { host: endpoint.host.clone(), port: server.local_addr().port() },
        None => endpoint.clone(),
    };
    let interface = match &server {
        Some(server) => reached_at(server.local_addr().ip(), addresses).await,
        None => interface_towards(addresses).unwrap_or(Ipv4Addr::LOCALHOST.into()),
    };
    let unspecified = addresses.iter().any(|address| address.ip().is_unspecified());
    Ok(RendezvousStore { client, server: server.map(Arc::new), endpoint, interface, unspecified })
}

/// Connects to a store, or hosts it if this agent is the first on the endpoint's machine. A taken port where nobody answers may
/// become free again: a connection of another program had it, or an agent that ended before it served.
async fn open(
    endpoint: &Master,
    addresses: &[SocketAddr],
    host: Host,
    patience: Duration,
    tell: impl Fn(&str),
) -> Result<(Option<Client>, Option<Server>), NoRendezvousStore> {
    let hosting = async {
        loop {
            match bind(addresses) {
                Err((_, why)) if why.kind() == ErrorKind::AddrInUse => sleep(AGAIN).await,
                hosted => return hosted,
            }
        }
    };
    tokio::select! {
        biased;
        hosted = hosting, if host == Host::MeIfFirst => match hosted {
            Ok(server) => Ok((None, Some(server))),
            Err((address, why)) => Err(NoRendezvousStore::NotHosted { address, why }),
        },
        reached = connect(&endpoint.host, endpoint.port, patience, tell) => match reached {
            Ok(client) => Ok((Some(client), None)),
            Err(error) => Err(NoRendezvousStore::NotReached { endpoint: endpoint.clone(), error: Box::new(error) }),
        },
    }
}

/// Starts a server on the first address that belongs to this machine. If none does, as with a load balancer or a name
/// that only other machines resolve, it listens on all interfaces.
fn bind(addresses: &[SocketAddr]) -> Result<Server, (SocketAddr, io::Error)> {
    let everywhere = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), addresses.first().map_or(0, SocketAddr::port));
    let address = addresses.iter().copied().find(|address| is_local(address.ip())).unwrap_or(everywhere);
    host_on(address, true).map_err(|error| (address, error))
}

/// Connects to a store that may not be up yet. `tell` receives a message now and then; a listener that is not a store
/// is an immediate error.
async fn connect(host: &str, port: u16, patience: Duration, tell: impl Fn(&str)) -> Result<Client, Error> {
    let begun = tokio::time::Instant::now();
    loop {
        let left = patience.saturating_sub(begun.elapsed());
        // A short last attempt would only fail with a timeout.
        let slice = if left < 2 * SILENCE { left } else { SILENCE };
        match Client::connect_with(host, port, slice, ClientOptions::default()).await {
            Err(error) if may_come(&error.kind) && slice < left => {
                let limit = patience.as_secs();
                tell(&format!("waiting for the rendezvous at {host}:{port}, for up to {limit} s: {}", error.kind));
            }
            // The error reports the time of all attempts.
            Err(error) => return Err(Error { elapsed: begun.elapsed(), ..error }),
            reached => return reached,
        }
    }
}

/// Returns true if another attempt may succeed: the agent that hosts the store may not have been started yet.
fn may_come(kind: &Kind) -> bool {
    matches!(kind, Kind::Unresolved { .. } | Kind::Refused | Kind::Unreachable { .. })
}

/// The address at which others reach a listener on `bound`. If that means all interfaces, it is the address on the
/// route to the endpoint, if that is another machine (a load balancer), otherwise the one that this machine's name
/// resolves to, otherwise the one on the default route, otherwise an interface's, otherwise loopback.
async fn reached_at(bound: IpAddr, addresses: &[SocketAddr]) -> IpAddr {
    /// A documentation address (RFC 5737): nothing is sent to it, but it has a route.
    const WORLD: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 9);
    if !bound.is_unspecified() {
        return bound;
    }
    let elsewhere: Vec<SocketAddr> = addresses.iter().copied().filter(|address| !is_local(address.ip())).collect();
    let found = match interface_towards(&elsewhere) {
        None => named_interface(bound).await.or_else(|| interface_towards(&[WORLD])).or_else(first_interface),
        found => found,
    };
    found.unwrap_or(Ipv4Addr::LOCALHOST.into())
}

/// The address that this machine's name resolves to, if other machines can reach it and `bound` includes it.
async fn named_interface(bound: IpAddr) -> Option<IpAddr> {
    let name = hostname();
    let found = timeout(NAMED, resolve(&name, 0)).await.ok()?.ok()?;
    let own = |address: &IpAddr| !address.is_loopback() && !address.is_unspecified() && is_local(*address);
    found.iter().map(SocketAddr::ip).filter(own).find(|address| bound.is_ipv6() || address.is_ipv4())
}

/// The first address of IPv4 that is not loopback.
fn first_interface() -> Option<IpAddr> {
    let mut addresses = getifaddrs().ok()?.filter_map(|entry| entry.address.ip_addr());
    addresses.find(|address| address.is_ipv4() && !address.is_loopback())
}

/// This machine's address on the route to the first of the addresses. Connecting a datagram socket sends nothing.
fn interface_towards(addresses: &[SocketAddr]) -> Option<IpAddr> {
    let towards = |address: &SocketAddr| {
        let any: IpAddr =
            if address.is_ipv6() { std::net::Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect(address)?;
        socket.local_addr()
    };
    let found = addresses.iter().find_map(|address| towards(address).ok()).map(|address| address.ip());
    found.filter(|address| !address.is_unspecified())
}

/// The name of this machine for other nodes: its host name if that resolves to `interface`, otherwise the address.
async fn name_for(interface: IpAddr, hostname: &str) -> String {
    let found = timeout(NAMED, resolve(hostname, 0)).await;
    let leads_there =
        found.is_ok_and(|found| found.is_ok_and(|found| found.iter().any(|address| address.ip() == interface)));
    if leads_there { hostname.to_owned() } else { interface.to_string() }
}

/// The name of this machine.
pub(super) fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Gloo's variable for the interface.
pub(super) const GLOO_INTERFACE: &str = "GLOO_SOCKET_IFNAME";

/// The network interface of the workers' Gloo, where Gloo's own choice would be loopback.
///
/// Gloo listens on the first address of the host name that belongs to this machine, otherwise on loopback (`createDefaultDevice` of
/// torch/csrc/distributed/c10d/ProcessGroupGloo.cpp). Debian's `/etc/hosts` gives the host name 127.0.1.1, so that ranks of other
/// nodes connect to themselves. The agent knows the interface through which it reached the rendezvous, and sets
/// `GLOO_SOCKET_IFNAME` to that. NCCL leaves loopback out by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GlooInterface {
    pub(super) name: String,
    /// Why, in one line for the user.
    pub(super) notice: String,
}

impl GlooInterface {
    /// The interface with the address `reached`, through which this node reached the rendezvous; `None` if Gloo needs no help, or if
    /// the user has chosen.
    pub(super) async fn choose(config: &Config, reached: IpAddr, hostname: &str) -> Option<Self> {
        let is_chosen = std::env::var_os(GLOO_INTERFACE).is_some_and(|name| !name.is_empty());
        if is_chosen || config.nodes.max == 1 || reached.is_loopback() {
            return None;
        }
        // A name service that does not answer makes Gloo wait, too, and may answer Gloo later.
        let named = match timeout(NAMED, lookup_host((hostname, 0))).await.ok()? {
            Ok(found) => found.map(|address| address.ip()).collect(),
            Err(_) => Vec::new(),
        };
        let why = falls_back(hostname, &named, is_local)?;
        let name = name_of(reached)?;
        let notice = format!(
            "setting {GLOO_INTERFACE}={name} for the workers, since {why}, and Gloo would listen on loopback, where no other node reaches it; \
             set the variable yourself for another interface"
        );
        Some(GlooInterface { name, notice })
    }
}

/// Why Gloo would listen on loopback, if the host name has these addresses in this order.
fn falls_back(hostname: &str, named: &[IpAddr], is_local: impl Fn(IpAddr) -> bool) -> Option<String> {
    let Some(first) = named.first() else { return Some(format!("the host name {hostname} has no address")) };
    match named.iter().find(|address| is_local(**address)) {
        Some(own) if own.is_loopback() => Some(format!("the host name {hostname} leads to {own}")),
        Some(_) => None,
        None => Some(format!("the host name {hostname} leads to {first}, which is not an address of this machine")),
    }
}

/// The interface that has this address.
fn name_of(address: IpAddr) -> Option<String> {
    getifaddrs().ok()?.find(|entry| entry.address.ip_addr() == Some(address)).map(|entry| entry.name)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpSocket;

    use super::*;

    /// If the first attempt were final, nobody would host the store.
    #[tokio::test]
    async fn hosts_the_store_once_the_port_that_another_program_has_is_free() {
        let other = TcpSocket::new_v4().unwrap();
        other.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = other.local_addr().unwrap();
        let endpoint = Master { host: "127.0.0.1".into(), port: address.port() };
        let addresses = [address];
        let meeting = open_store(&endpoint, &addresses, Host::MeIfFirst, Duration::from_secs(60), |_| {});
        // The first attempt to host it comes before the port is free.
        let (met, ()) = tokio::join!(biased; meeting, async { drop(other) });
        let met = met.unwrap();
        assert_eq!((met.server.is_some(), met.client.is_none(), met.endpoint), (true, true, endpoint));
    }

    #[test]
    fn listens_everywhere_if_this_machines_own_name_leads_to_loopback() {
        let listens = |name: &str, address: &str| {
            let addresses = vec![SocketAddr::new(address.parse().unwrap(), 29_400)];
            to_listen_on(name, "n1.cluster", addresses)[0].to_string()
        };
        assert_eq!(listens("n1", "127.0.1.1"), "0.0.0.0:29400");
        assert_eq!(listens("N1.cluster", "::1"), "0.0.0.0:29400");
        assert_eq!(listens("n1", "10.0.0.1"), "10.0.0.1:29400");
        assert_eq!(listens("localhost", "127.0.0.1"), "127.0.0.1:29400");
        assert_eq!(listens("127.0.0.1", "127.0.0.1"), "127.0.0.1:29400");
        assert_eq!(to_listen_on("n1", "n1", Vec::new()), []);
    }

    #[test]
    fn gloo_needs_help_where_the_host_name_leads_to_loopback_or_nowhere() {
        let why = |named: &[&str]| {
            let named: Vec<IpAddr> = named.iter().map(|address| address.parse().unwrap()).collect();
            let own = |address: IpAddr| address.is_loopback() || address.to_string().starts_with("10.");
            falls_back("n1", &named, own)
        };
        assert_eq!(why(&["127.0.1.1"]).unwrap(), "the host name n1 leads to 127.0.1.1");
        assert_eq!(why(&["::1", "10.0.0.1"]).unwrap(), "the host name n1 leads to ::1");
        assert_eq!(why(&[]).unwrap(), "the host name n1 has no address");
        assert!(why(&["192.168.7.9"]).unwrap().ends_with("192.168.7.9, which is not an address of this machine"));
        assert_eq!(why(&["10.0.0.1", "127.0.1.1"]), None);
        assert_eq!(why(&["192.168.7.9", "10.0.0.1"]), None, "it takes the first that it can listen on");
    }

    #[test]
    fn finds_the_interface_of_an_address() {
        assert_eq!(name_of(IpAddr::from([127, 0, 0, 1])).as_deref(), Some("lo"));
        assert_eq!(name_of(IpAddr::from([192, 0, 2, 1])), None);
    }
}
