//! The store on which the workers of a round meet: where it is, and hosting it on group rank 0.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener};
use std::str::FromStr;
use std::sync::Arc;

use tcpstore::{Options, Server};

/// MASTER_ADDR and MASTER_PORT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Master {
    /// Name or address under which the workers of all nodes reach it.
    pub(super) host: String,
    /// Its port.
    pub(super) port: u16,
}

/// How this node would host the workers' store.
#[derive(Debug)]
pub(super) enum Site {
    /// Every round has a store of its own, on a free port of this interface; `host` is what the others call it.
    Own { host: String, interface: IpAddr, server: Option<Server> },
    /// All rounds share the store in which the agents meet, as a static rendezvous demands, since its port is known
    /// beforehand. Only on the agent that hosts it there is a `server`.
    Shared { master: Master, server: Option<Arc<Server>>, agents_prefix: String },
}

impl Site {
    /// Closes the store that this node opened for an earlier round, whose workers have ended on all nodes.
    pub(super) fn close(&mut self) {
        if let Site::Own { server, .. } = self {
            *server = None;
        }
    }

    /// Opens the store of a new round; that of the last one, which no worker uses any more, is gone then.
    ///
    /// # Errors
    /// In words, where there is no free port or no such interface.
    pub(super) fn open(&mut self) -> Result<Master, String> {
        match self {
            Site::Own { host, interface, server } => {
                *server = None;
                let opened = host_on(SocketAddr::new(*interface, 0)).map_err(|error| {
                    format!("cannot open the workers' store on {interface}: {error}; name this node's address by --local-addr")
                })?;
                let master = Master { host: host.clone(), port: opened.local_addr().port() };
                *server = Some(opened);
                Ok(master)
            }
            Site::Shared { master, server, agents_prefix } => {
                if let Some(server) = server {
                    // What the workers of the last round left would be taken for this round's.
                    server.clear_except(agents_prefix);
                }
                Ok(master.clone())
            }
        }
    }
}

/// A store server on `address`.
pub(super) fn host_on(address: SocketAddr) -> std::io::Result<Server> {
    Server::start(TcpListener::bind(address)?, Options::default())
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
        let port = port.parse().map_err(|_| format!("`{port}` is no port"))?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        Ok(Master { host: host.to_owned(), port })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_read_back_as_it_was_told() {
        for (host, told) in [("gpu01", "gpu01:7"), ("10.0.0.1", "10.0.0.1:7"), ("fe80::1", "[fe80::1]:7")] {
            let master = Master { host: host.into(), port: 7 };
            assert_eq!(master.to_string(), told);
            assert_eq!(told.parse(), Ok(master));
        }
    }

    #[test]
    fn rejects_what_names_no_port() {
        for text in ["", "gpu01", "gpu01:", ":7", "gpu01:65536", "gpu01:-1"] {
            assert!(text.parse::<Master>().is_err(), "{text}");
        }
    }

    #[test]
    fn each_round_has_a_store_of_its_own_and_the_old_one_is_gone() {
        let loopback = IpAddr::from([127, 0, 0, 1]);
        let mut site = Site::Own { host: "127.0.0.1".into(), interface: loopback, server: None };
        let first = site.open().unwrap();
        let Site::Own { server: Some(server), .. } = &site else { panic!("{site:?}") };
        server.set("k", b"v").unwrap();
        site.open().unwrap();
        let Site::Own { server: Some(server), .. } = &site else { panic!("{site:?}") };
        assert_eq!(server.get("k"), None);
        drop(site);
        assert!(TcpListener::bind(SocketAddr::new(loopback, first.port)).is_ok(), "the port is free again");
    }

    #[test]
    fn a_shared_store_forgets_what_workers_left_and_keeps_what_agents_said() {
        let server = Arc::new(host_on(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap());
        server.set("lockstep/rendezvous/none/state", b"{}").unwrap();
        server.set("default_pg/0//cpu//0", b"address").unwrap();
        let master = Master { host: "127.0.0.1".into(), port: server.local_addr().port() };
        let agents_prefix = "lockstep/".to_owned();
        let mut site = Site::Shared { master: master.clone(), server: Some(Arc::clone(&server)), agents_prefix };
        assert_eq!(site.open(), Ok(master));
        assert_eq!(server.keys(""), ["lockstep/rendezvous/none/state"]);
    }
}
