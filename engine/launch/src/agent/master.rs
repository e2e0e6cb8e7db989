//! The store of a round's workers: its address, and hosting it on group rank 0.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::str::FromStr;
use std::sync::Arc;

use lockstep_process::refusal;
use tcpstore::{Server, ServerOptions};

/// MASTER_ADDR and MASTER_PORT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Master {
    /// The name or address at which the workers of all nodes reach it.
    pub(super) host: String,
    /// Its port.
    pub(super) port: u16,
}

/// How this node hosts the workers' store.
#[derive(Debug)]
pub(super) enum StoreHosting {
    /// Every round has its own store, on a free port of this interface; `host` is the name for other nodes.
    Own { host: String, interface: IpAddr, server: Option<Server> },
    /// All rounds share the agents' store, as a static rendezvous requires, because its port is fixed in advance. Only
    /// the agent that hosts it has a `server`.
    Shared { master: Master, server: Option<Arc<Server>>, agents_prefix: String },
}

impl StoreHosting {
    /// Closes the store that this node opened for an earlier round, whose workers have ended on all nodes.
    pub(super) fn close(&mut self) {
        if let StoreHosting::Own { server, .. } = self {
            *server = None;
        }
    }

    /// Opens the store of a new round and closes that of the previous one, which no worker uses any more.
    ///
    /// # Errors
    /// A message if there is no free port or no such interface.
    pub(super) fn open(&mut self) -> Result<Master, String> {
        match self {
            StoreHosting::Own { host, interface, server } => {
                *server = None;
                let opened = check_loopback(*interface).and_then(|()| host_on(SocketAddr::new(*interface, 0), false));
                let opened = opened.map_err(|error| {
                    let advice = refusal(&error).unwrap_or_else(|| advice(&error, *interface).to_owned());
                    format!("cannot open the workers' store on {interface}: {error}; {advice}")
                })?;
                let master = Master { host: host.clone(), port: opened.local_addr().port() };
                *server = Some(opened);
                Ok(master)
            }
            StoreHosting::Shared { master, server, agents_prefix } => {
                if let Some(server) = server {
                    // Keys of the previous round's workers would be mistaken for this round's.
                    server.clear_except(agents_prefix);
                }
                Ok(master.clone())
            }
        }
    }
}

/// Checks that this machine reaches a loopback address. A listener opens on one even where the interface is down, and no worker would reach
/// it.
fn check_loopback(interface: IpAddr) -> io::Result<()> {
    if !interface.is_loopback() {
        return Ok(());
    }
    // Connecting a UDP socket asks for the route and sends nothing.
    UdpSocket::bind(SocketAddr::new(interface, 0))?.connect(SocketAddr::new(interface, 9))
}

/// What to do where a store cannot be opened on this interface.
fn advice(error: &io::Error, interface: IpAddr) -> &'static str {
    match error.kind() {
        ErrorKind::AddrNotAvailable | ErrorKind::NetworkUnreachable if interface.is_loopback() => {
            "this machine's loopback interface is down or has no such address: `ip addr show lo`, and as root \
             `ip link set lo up && ip addr add 127.0.0.1/8 dev lo`"
        }
        ErrorKind::AddrNotAvailable | ErrorKind::NetworkUnreachable => "name this node's address by --local-addr",
        _ => "`lockstep doctor` shows this machine's limits",
    }
}

/// Starts a store server on `address`, which also lets agents leave the store's protocol if they meet here.
pub(super) fn host_on(address: SocketAddr, hands_over: bool) -> std::io::Result<Server> {
    Server::start(TcpListener::bind(address)?, ServerOptions { hands_over, ..ServerOptions::default() })
}

impl fmt::Display for Master {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.parse::<Ipv6Addr>() {
            Ok(host) => write!(f, "[{host}]:{}", self.port),
            Err(_) => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl FromStr for Master {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let split = text.rsplit_once(':').filter(|(host, _)| !host.is_empty());
        let (host, port) = split.ok_or_else(|| "it is not HOST:PORT".to_owned())?;
        let port = port.parse().map_err(|_| format!("`{port}` is not a port"))?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        Ok(Master { host: host.to_owned(), port })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_its_own_text() {
        for (host, text) in [("gpu01", "gpu01:7"), ("10.0.0.1", "10.0.0.1:7"), ("fe80::1", "[fe80::1]:7")] {
            let master = Master { host: host.into(), port: 7 };
            assert_eq!(master.to_string(), text);
            assert_eq!(text.parse(), Ok(master));
        }
    }

    #[test]
    fn rejects_texts_without_a_port() {
        for text in ["", "gpu01", "gpu01:", ":7", "gpu01:65536", "gpu01:-1"] {
            assert!(text.parse::<Master>().is_err(), "{text}");
        }
    }

    #[test]
    fn each_round_has_its_own_store_and_the_old_one_is_closed() {
        let loopback = IpAddr::from([127, 0, 0, 1]);
        let mut hosting = StoreHosting::Own { host: "127.0.0.1".into(), interface: loopback, server: None };
        let first = hosting.open().unwrap();
        let StoreHosting::Own { server: Some(server), .. } = &hosting else { panic!("{hosting:?}") };
        server.set("k", b"v").unwrap();
        hosting.open().unwrap();
        let StoreHosting::Own { server: Some(server), .. } = &hosting else { panic!("{hosting:?}") };
        assert_eq!(server.get("k"), None);
        drop(hosting);
        assert!(!lockstep_testkit::listens(first.port), "the store still listens on port {}", first.port);
    }

    #[test]
    fn what_to_do_depends_on_the_error_and_on_the_interface() {
        let (loopback, other) = (IpAddr::from([127, 0, 0, 1]), IpAddr::from([10, 0, 0, 1]));
        let down = io::Error::from(ErrorKind::NetworkUnreachable);
        assert!(advice(&down, loopback).contains("ip link set lo up"));
        assert!(advice(&io::Error::from(ErrorKind::AddrNotAvailable), other).contains("--local-addr"));
        assert!(advice(&io::Error::from(ErrorKind::WouldBlock), loopback).contains("lockstep doctor"));
        check_loopback(loopback).unwrap();
        check_loopback(other).unwrap();
    }

    #[test]
    fn a_shared_store_drops_keys_of_workers_and_keeps_keys_of_agents() {
        let server = Arc::new(host_on(SocketAddr::from(([127, 0, 0, 1], 0)), false).unwrap());
        server.set("lockstep/rendezvous/none/state", b"{}").unwrap();
        server.set("default_pg/0//cpu//0", b"address").unwrap();
        let master = Master { host: "127.0.0.1".into(), port: server.local_addr().port() };
        let agents_prefix = "lockstep/".to_owned();
        let mut hosting =
            StoreHosting::Shared { master: master.clone(), server: Some(Arc::clone(&server)), agents_prefix };
        assert_eq!(hosting.open(), Ok(master));
        assert_eq!(server.keys(""), ["lockstep/rendezvous/none/state"]);
    }
}
