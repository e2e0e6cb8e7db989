//! Where the agents meet: hosting the rendezvous' store on this machine, or connecting to it.
//!
//! A static rendezvous is hosted by node rank 0. A c10d one is hosted by the agent on whose machine the endpoint lies, the
//! first if there are several (`_create_tcp_store` of torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py).
//! What is told when nobody can be met is in [`crate::diagnose`].

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use tcpstore::{Client, ClientOptions, Error, Kind, Server};
use tokio::time::{Instant, timeout};

use super::master::{Master, host_on};

/// For how long a store that nobody hosts is looked for before a word is said about it, and between two words.
const QUIET: Duration = Duration::from_secs(5);

/// A name service that takes longer to find this machine's own name is not made the workers' business.
const NAMED: Duration = Duration::from_secs(2);

/// Who hosts the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Host {
    /// This agent, and nobody else.
    Me,
    /// This agent, unless another one on this machine was first.
    MeIfFirst,
    /// Another agent.
    Other,
}

/// An open rendezvous: a client, and the server if this agent hosts it.
#[derive(Debug)]
pub(super) struct Meeting {
    pub(super) client: Client,
    pub(super) server: Option<Arc<Server>>,
    /// Where it is, as the others were told.
    pub(super) endpoint: Master,
    /// The address of this machine by which it reaches the store.
    pub(super) interface: IpAddr,
    /// Whether the endpoint stands for all addresses of this machine, and so names none.
    pub(super) unspecified: bool,
}

/// Why there is none.
#[derive(Debug)]
pub(super) enum NoMeeting {
    /// The host's name has no address.
    Unresolved { why: String },
    /// The port on this machine cannot be had.
    NotHosted { address: SocketAddr, why: io::Error },
    /// The store elsewhere cannot be reached, or what listens there is none.
    NotReached { endpoint: Master, error: Box<Error> },
}

/// The addresses of `host`, IPv4 first, since that is what workers' libraries try first as well.
pub(super) async fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, NoMeeting> {
    let unresolved = |why: String| NoMeeting::Unresolved { why };
    let found = tokio::net::lookup_host((host, port)).await.map_err(|error| unresolved(error.to_string()))?;
    let mut found: Vec<SocketAddr> = found.collect();
    found.sort_by_key(SocketAddr::is_ipv6);
    found.dedup();
    if found.is_empty() { Err(unresolved("it has no address".to_owned())) } else { Ok(found) }
}

/// Who hosts a c10d rendezvous at `addresses`, unless `is_host` of `--rdzv-conf` says it.
pub(super) fn host_of(addresses: &[SocketAddr], is_host: Option<bool>) -> Host {
    match is_host {
        Some(true) => Host::Me,
        Some(false) => Host::Other,
        None if addresses.iter().any(|address| is_local(address.ip())) => Host::MeIfFirst,
        None => Host::Other,
    }
}

/// Whether `address` is one of this machine's: whether something can be bound to it.
pub(super) fn is_local(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// Hosts the store at `endpoint` or connects to it, for at most `patience`; `tell` hears what is waited for.
pub(super) async fn meet(
    endpoint: &Master,
    addresses: &[SocketAddr],
    host: Host,
    patience: Duration,
    tell: impl Fn(&str),
) -> Result<Meeting, NoMeeting> {
    let server = match host {
        Host::Other => None,
        Host::Me | Host::MeIfFirst => match bind(addresses) {
            Ok(server) => Some(server),
            Err((_, why)) if host == Host::MeIfFirst && why.kind() == ErrorKind::AddrInUse => None,
            Err((address, why)) => return Err(NoMeeting::NotHosted { address, why }),
        },
    };
    let endpoint = match &server {
        Some(server) => Master { host: endpoint.host.clone(), port: server.local_addr().port() },
        None => endpoint.clone(),
    };
    let reached = match &server {
        Some(server) => connect(&server.local_addr().ip().to_string(), endpoint.port, patience, tell).await,
        None => connect(&endpoint.host, endpoint.port, patience, tell).await,
    };
    let client =
        reached.map_err(|error| NoMeeting::NotReached { endpoint: endpoint.clone(), error: Box::new(error) })?;
    let interface = match &server {
        Some(server) => reached_at(server.local_addr().ip(), addresses).await,
        None => interface_towards(addresses).unwrap_or(Ipv4Addr::LOCALHOST.into()),
    };
    let unspecified = addresses.iter().any(|address| address.ip().is_unspecified());
    Ok(Meeting { client, server: server.map(Arc::new), endpoint, interface, unspecified })
}

/// A server on the first of the addresses that is this machine's; where none is, as behind a load balancer or with a name
/// that only others resolve, on all interfaces.
fn bind(addresses: &[SocketAddr]) -> Result<Server, (SocketAddr, io::Error)> {
    let everywhere = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), addresses.first().map_or(0, SocketAddr::port));
    let address = addresses.iter().copied().find(|address| is_local(address.ip())).unwrap_or(everywhere);
    host_on(address).map_err(|error| (address, error))
}

/// Connects to a store that may not be up yet. A word goes to `tell` now and then; what is no store at all ends it at once.
async fn connect(host: &str, port: u16, patience: Duration, tell: impl Fn(&str)) -> Result<Client, Error> {
    let begun = Instant::now();
    loop {
        let left = patience.saturating_sub(begun.elapsed());
        // The last attempt is not a short one, which would only tell that it was short.
        let slice = if left < 2 * QUIET { left } else { QUIET };
        match Client::connect_with(host, port, slice, ClientOptions::default()).await {
            Err(error) if may_come(&error.kind) && slice < left => {
                tell(&format!("waiting for the rendezvous at {host}:{port}: {}", error.kind));
            }
            // The last attempt alone is not how long it was tried.
            Err(error) => return Err(Error { elapsed: begun.elapsed(), ..error }),
            reached => return reached,
        }
    }
}

/// Whether another attempt may succeed: the agent that hosts the store may not have been started yet.
fn may_come(kind: &Kind) -> bool {
    matches!(kind, Kind::Unresolved { .. } | Kind::Refused | Kind::Unreachable { .. })
}

/// The address of this machine by which others reach what listens on `bound`. All interfaces have no address: then it is the
/// one on the way to the endpoint, where that leads to another machine (a load balancer), else the one that this machine's
/// name stands for, else the one on the way to the world, else loopback.
async fn reached_at(bound: IpAddr, addresses: &[SocketAddr]) -> IpAddr {
    /// An address of documentation (RFC 5737): nothing is sent there, but the routing table knows the way.
    const WORLD: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 9);
    if !bound.is_unspecified() {
        return bound;
    }
    let elsewhere: Vec<SocketAddr> = addresses.iter().copied().filter(|address| !is_local(address.ip())).collect();
    let found = match interface_towards(&elsewhere) {
        None => named_interface(bound).await.or_else(|| interface_towards(&[WORLD])),
        found => found,
    };
    found.unwrap_or(Ipv4Addr::LOCALHOST.into())
}

/// The address for which this machine's name stands, if other machines reach it there, and `bound` takes it in.
async fn named_interface(bound: IpAddr) -> Option<IpAddr> {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let found = timeout(NAMED, resolve(&name, 0)).await.ok()?.ok()?;
    let own = |address: &IpAddr| !address.is_loopback() && !address.is_unspecified() && is_local(*address);
    found.iter().map(SocketAddr::ip).filter(own).find(|address| bound.is_ipv6() || address.is_ipv4())
}

/// This machine's address on the way to the first of the addresses. Connecting a datagram socket sends nothing.
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

/// What other nodes call this machine: its name where that leads to `interface`, else the address itself.
pub(super) async fn name_for(interface: IpAddr, hostname: &str) -> String {
    let found = timeout(NAMED, resolve(hostname, 0)).await;
    let leads_there =
        found.is_ok_and(|found| found.is_ok_and(|found| found.iter().any(|address| address.ip() == interface)));
    if leads_there { hostname.to_owned() } else { interface.to_string() }
}
