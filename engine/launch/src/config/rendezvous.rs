//! How the agents of a job find each other: the flags of a rendezvous, and the address of its store.

use std::fmt;
use std::net::Ipv6Addr;

use super::flags::{ConfigError, Flags, Given, Source, whole};
use super::host::{HostInfo, Nodes};

/// How the agents of a job find each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendezvous {
    /// The backend.
    pub backend: Backend,
    /// The address of the store.
    pub endpoint: Endpoint,
    /// The id that distinguishes this job from others.
    pub run_id: String,
    /// `--rdzv-conf`, each key once.
    pub conf: Vec<(String, String)>,
    /// The address at which other nodes reach this agent; `None` to detect it.
    pub local_addr: Option<String>,
    /// One agent on one host, with a free port: the store is not reachable from others.
    pub standalone: bool,
}

/// The backend of a rendezvous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// A fixed set of nodes; this one has the given rank.
    Static {
        /// `--node-rank`; node 0 hosts the store.
        node_rank: usize,
    },
    /// Nodes may come and leave.
    C10d,
}

impl Rendezvous {
    /// Interprets the flags of a job of these nodes. The returned list has notices for the user.
    pub(super) fn from_flags(
        flags: &Flags,
        nodes: Nodes,
        host: &HostInfo<'_>,
    ) -> Result<(Self, Vec<String>), ConfigError> {
        // Both are always parsed: a text that is not a number is an error even if the value is not used.
        let (node_rank, port) = (whole(&flags.node_rank)?, whole(&flags.master_port)?);
        let conf = pairs(&flags.rdzv_conf)?;
        let mut notices = Vec::new();
        let alone = is_alone(flags, nodes);
        let (backend, endpoint) = match flags.rdzv_backend.text.as_str() {
            _ if flags.standalone => (Backend::C10d, standalone(nodes)?),
            "static" if alone => {
                static_rank(&flags.node_rank, node_rank, nodes)?;
                Endpoint::fixed(&flags.rdzv_endpoint, &flags.master_addr, 0)?;
                (Backend::C10d, standalone(nodes)?)
            }
            "static" => {
                let port = u16::try_from(port);
                let port = port
                    .map_err(|_| ConfigError::not_allowed(&flags.master_port, "a port is a number from 0 to 65535"))?;
                let node_rank = static_rank(&flags.node_rank, node_rank, nodes)?;
                (Backend::Static { node_rank }, Endpoint::fixed(&flags.rdzv_endpoint, &flags.master_addr, port)?)
            }
            "c10d" => {
                notices.extend(unused_master(flags));
                (Backend::C10d, Endpoint::c10d(&flags.rdzv_endpoint)?)
            }
            other => return Err(unknown_backend(&flags.rdzv_backend, other)),
        };
        if node_rank != 0 && backend == Backend::C10d {
            notices
                .push(format!("{}: only a static rendezvous uses it; c10d numbers the nodes itself", flags.node_rank));
        }
        let random_id =
            flags.standalone || flags.rdzv_id.text.is_empty() || alone && flags.rdzv_id.source == Source::Default;
        let run_id = if random_id { uuid(host.random) } else { flags.rdzv_id.text.clone() };
        let local_addr = Some(flags.local_addr.text.clone()).filter(|addr| !addr.is_empty());
        let standalone = flags.standalone || alone;
        Ok((Rendezvous { backend, endpoint, run_id, conf, local_addr, standalone }, notices))
    }
}

impl Backend {
    /// torchrun's name of the backend.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Static { .. } => "static",
            Backend::C10d => "c10d",
        }
    }
}

/// Returns true for a static rendezvous of one node without a port: it gets a free one, as in torchrun since 2.15, so that two jobs on
/// one machine do not collide.
fn is_alone(flags: &Flags, nodes: Nodes) -> bool {
    flags.rdzv_backend.text == "static"
        && flags.rdzv_endpoint.text.trim().is_empty()
        && flags.master_port.source == Source::Default
        && nodes.max == 1
}

/// As in torch, explicit rendezvous values are ignored.
fn standalone(nodes: Nodes) -> Result<Endpoint, ConfigError> {
    if nodes.min > 1 {
        let message = format!(
            "--standalone is for one node, but --nnodes asks for {nodes}: give --rdzv-backend=c10d and --rdzv-endpoint=HOST:PORT instead"
        );
        return Err(ConfigError::Clash(message));
    }
    Ok(Endpoint { host: "localhost".into(), port: 0 })
}

fn static_rank(given: &Given, rank: i64, nodes: Nodes) -> Result<usize, ConfigError> {
    let fits = usize::try_from(rank).ok().filter(|rank| *rank < nodes.max);
    let why = || format!("with --nnodes={nodes} it must be from 0 to {}", nodes.max - 1);
    fits.ok_or_else(|| ConfigError::not_allowed(given, why()))
}

fn unknown_backend(given: &Given, name: &str) -> ConfigError {
    let why = if name.starts_with("etcd") {
        "etcd is not supported; c10d needs no server of its own: --rdzv-backend=c10d --rdzv-endpoint=HOST:PORT"
    } else {
        "expected static or c10d"
    };
    ConfigError::not_allowed(given, why)
}

fn unused_master(flags: &Flags) -> Option<String> {
    let master = [&flags.master_addr, &flags.master_port].into_iter().find(|given| given.source != Source::Default)?;
    let empty = flags.rdzv_endpoint.text.trim().is_empty();
    empty.then(|| format!("{master}: only a static rendezvous uses it; c10d goes to localhost:{} unless --rdzv-endpoint says otherwise", DEFAULT_PORT))
}

/// A version 4 UUID (RFC 9562, section 5.4), as torchrun's random ids are.
fn uuid(random: u128) -> String {
    let bits = random & !(0xf << 76) & !(0x3 << 62) | 0x4 << 76 | 0x2 << 62;
    let hex = format!("{bits:032x}");
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// `DEFAULT_PORT` of torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py.
pub const DEFAULT_PORT: u16 = 29400;

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// A name or an address; an IPv6 address without brackets.
    pub host: String,
    /// 0 lets the operating system choose.
    pub port: u16,
}

impl Endpoint {
    /// Parses `host`, `host:port`, `[IPv6]` or `[IPv6]:port` as torch's `parse_rendezvous_endpoint` does (an empty host
    /// is `localhost`); the port is `None` if it is missing. A bare IPv6 address without a port is accepted.
    ///
    /// # Errors
    /// A message that does not contain the text itself.
    pub fn split(text: &str) -> Result<(String, Option<u16>), String> {
        let text = text.trim();
        let (host, port) = match text.rsplit_once(':') {
            _ if text.is_empty() => ("localhost", None),
            _ if text.starts_with('[') && text.ends_with(']') => (text, None),
            Some((host, _)) if is_torn(host) && text.parse::<Ipv6Addr>().is_ok() => (text, None),
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        };
        let port = port.map(|port| parse_port(port).ok_or("the port must be a number from 0 to 65535")).transpose()?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let sound = !host.is_empty() && host.chars().all(|c| c.is_alphanumeric() || "_.:-".contains(c));
        if !sound {
            return Err("the host must be a name, an IPv4 address, or an IPv6 address, such as node1:29400".to_owned());
        }
        Ok((host.to_owned(), port))
    }

    /// For c10d: the endpoint's port, or 29400.
    pub(super) fn c10d(given: &Given) -> Result<Self, ConfigError> {
        let (host, port) = Endpoint::split(&given.text).map_err(|why| ConfigError::not_allowed(given, why))?;
        Ok(Endpoint { host, port: port.unwrap_or(DEFAULT_PORT) })
    }

    /// For static: the endpoint with its port, otherwise the master's address and port.
    pub(super) fn fixed(endpoint: &Given, master_addr: &Given, master_port: u16) -> Result<Self, ConfigError> {
        if endpoint.text.trim().is_empty() {
            let text = format!("{}:{master_port}", master_addr.text.trim());
            let (host, _) = Endpoint::split(&text).map_err(|why| ConfigError::not_allowed(master_addr, why))?;
            return Ok(Endpoint { host, port: master_port });
        }
        let (host, port) = Endpoint::split(&endpoint.text).map_err(|why| ConfigError::not_allowed(endpoint, why))?;
        let port = port
            .ok_or_else(|| ConfigError::not_allowed(endpoint, "a static rendezvous needs the port too, HOST:PORT"))?;
        Ok(Endpoint { host, port })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// `--rdzv-conf`: comma-separated `key=value` pairs. If a key occurs twice, the last value wins.
pub(super) fn pairs(given: &Given) -> Result<Vec<(String, String)>, ConfigError> {
    let mut pairs: Vec<(String, String)> = Vec::new();
    if given.text.trim().is_empty() {
        return Ok(pairs);
    }
    for pair in given.text.split(',') {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (key, value) = (key.trim(), value.trim());
        if key.is_empty() {
            return Err(ConfigError::not_allowed(given, "expected KEY=VALUE,KEY=VALUE,…"));
        }
        if value.is_empty() {
            return Err(ConfigError::not_allowed(given, format!("`{key}` needs a value, {key}=VALUE")));
        }
        pairs.retain(|(known, _)| known != key);
        pairs.push((key.to_owned(), value.to_owned()));
    }
    Ok(pairs)
}

/// Returns true if `host` is an IPv6 address whose last group was parsed as a port.
fn is_torn(host: &str) -> bool {
    host.contains(':') && !host.starts_with('[') && host.parse::<Ipv6Addr>().is_err()
}

fn parse_port(text: &str) -> Option<u16> {
    let digits = (1..=5).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::testing::{config, refused, try_config};

    #[test]
    fn standalone_overrides_explicit_rendezvous_values() {
        let config = config(&["--standalone", "--rdzv-backend=etcd", "--rdzv-endpoint=node1:7", "--rdzv-id=mine"]);
        let rendezvous = config.rendezvous;
        assert_eq!((rendezvous.backend, rendezvous.endpoint.to_string()), (Backend::C10d, "localhost:0".into()));
        assert_eq!(rendezvous.run_id, "01234567-89ab-4def-8123-456789abcdef", "a version 4 UUID");
        assert!(rendezvous.standalone);
        assert!(
            refused(&["--standalone", "--nnodes=2"]).to_string().contains("is for one node, but --nnodes asks for 2")
        );
        assert!(try_config(&["--standalone", "--nnodes=1:2"]).is_ok());
    }

    #[test]
    fn an_empty_id_becomes_a_random_one() {
        assert_eq!(config(&["--rdzv-id="]).rendezvous.run_id.len(), 36);
    }

    #[test]
    fn finds_the_endpoint_by_the_backends_rules() {
        let endpoint = |flags: &[&str]| config(flags).rendezvous.endpoint.to_string();
        assert_eq!(endpoint(&["--master-addr=10.0.0.1", "--master-port=7"]), "10.0.0.1:7");
        assert_eq!(endpoint(&["--rdzv-backend=c10d"]), "localhost:29400");
        assert_eq!(endpoint(&["--rdzv-backend=c10d", "--rdzv-endpoint=[::1]"]), "[::1]:29400");
        assert_eq!(endpoint(&["--rdzv-endpoint=node1:5"]), "node1:5");
        assert!(refused(&["--rdzv-endpoint=node1"]).to_string().contains("needs the port too"));
        assert!(refused(&["--master-port=70000"]).to_string().contains("from 0 to 65535"));
        assert!(
            refused(&["--rdzv-backend=etcd-v2"]).to_string().contains("etcd is not supported; c10d needs no server")
        );
        assert!(refused(&["--rdzv-backend=mpi"]).to_string().ends_with("expected static or c10d"));
    }

    #[test]
    fn a_static_nodes_rank_must_exist() {
        let backend = config(&["--nnodes=2", "--node-rank=1"]).rendezvous.backend;
        assert_eq!((backend, backend.name()), (Backend::Static { node_rank: 1 }, "static"));
        assert!(
            refused(&["--nnodes=2", "--node-rank=2"]).to_string().ends_with("with --nnodes=2 it must be from 0 to 1")
        );
        assert!(!refused(&["--node-rank=-1"]).is_usage());
        assert!(
            refused(&["--node-rank=1"]).to_string().ends_with("with --nnodes=1 it must be from 0 to 0"),
            "alone, --nnodes was forgotten"
        );
    }

    #[test]
    fn says_that_c10d_does_not_use_a_nodes_rank() {
        for backend in ["--rdzv-backend=c10d", "--standalone"] {
            let (_, notices) = try_config(&[backend, "--node-rank=9"]).unwrap();
            assert_eq!(notices, ["--node-rank=9: only a static rendezvous uses it; c10d numbers the nodes itself"]);
            assert_eq!(try_config(&[backend, "--node-rank=0"]).unwrap().1, [""; 0]);
        }
        assert_eq!(try_config(&["--nnodes=2", "--node-rank=1"]).unwrap().1, [""; 0]);
    }

    #[test]
    fn one_static_node_without_a_port_gets_a_free_one() {
        let place = |flags: &[&str]| config(flags).rendezvous;
        for flags in [&[][..], &["--master-addr=10.0.0.1"], &["--nnodes=1:1", "--rdzv-backend=static"]] {
            let alone = place(flags);
            assert_eq!((alone.backend, alone.endpoint.to_string()), (Backend::C10d, "localhost:0".into()), "{flags:?}");
            assert!(alone.standalone && alone.run_id.len() == 36, "{alone:?}");
        }
        let kept = place(&["--rdzv-id=mine"]);
        assert_eq!((kept.run_id.as_str(), kept.endpoint.port), ("mine", 0), "a given id is kept");
        for flags in [&["--master-port=29500"][..], &["--rdzv-endpoint=localhost:7"], &["--nnodes=2"]] {
            let fixed = place(flags);
            assert_eq!((fixed.backend, fixed.standalone), (Backend::Static { node_rank: 0 }, false), "{flags:?}");
        }
        assert!(refused(&["--master-addr=a b"]).to_string().starts_with("--master-addr=a b: the host must be"));
    }

    fn given(flag: &'static str, text: &str) -> Given {
        Given { flag, text: text.into(), source: Source::CommandLine }
    }

    #[test]
    fn reads_endpoints_as_torch_does() {
        // Except for the last, the pairs are what torch 2.11's parse_rendezvous_endpoint returns for a default port of 29400.
        for (text, host, port) in [
            ("", "localhost", 29400),
            ("  ", "localhost", 29400),
            ("node1", "node1", 29400),
            ("node1:1234", "node1", 1234),
            ("localhost:0", "localhost", 0),
            ("10.0.0.1:65535", "10.0.0.1", 65535),
            ("[::1]", "::1", 29400),
            ("[::1]:29400", "::1", 29400),
            ("[0:0:0:0:0:0:0:1]:5", "0:0:0:0:0:0:0:1", 5),
            ("::1:29400", "::1", 29400),
            ("under_score.example:7", "under_score.example", 7),
            ("::1", "::1", 29400),
        ] {
            let endpoint = Endpoint::c10d(&given("rdzv-endpoint", text)).unwrap();
            assert_eq!((endpoint.host.as_str(), endpoint.port), (host, port), "{text}");
        }
        assert_eq!(Endpoint { host: "::1".into(), port: 5 }.to_string(), "[::1]:5");
    }

    #[test]
    fn rejects_endpoints_that_torch_rejects() {
        for text in
            ["node1:", "node1:x", "node1:65536", "node1:123456", ":1234", "a b:1", "http://x:1", "node1:-1", "[]:1"]
        {
            let error = Endpoint::c10d(&given("rdzv-endpoint", text)).unwrap_err();
            assert!(error.to_string().starts_with(&format!("--rdzv-endpoint={text}: the ")), "{error}");
        }
    }

    #[test]
    fn uses_the_masters_address_if_a_static_endpoint_is_empty() {
        let fixed =
            |endpoint, addr| Endpoint::fixed(&given("rdzv-endpoint", endpoint), &given("master-addr", addr), 29500);
        assert_eq!(fixed("", "10.0.0.1").unwrap().to_string(), "10.0.0.1:29500");
        assert_eq!(fixed("", "[::1]").unwrap().to_string(), "[::1]:29500");
        assert_eq!(fixed("node1:7", "10.0.0.1").unwrap().to_string(), "node1:7");
        let error = fixed("node1", "10.0.0.1").unwrap_err().to_string();
        assert_eq!(error, "--rdzv-endpoint=node1: a static rendezvous needs the port too, HOST:PORT");
        assert!(fixed("", "a b").unwrap_err().to_string().starts_with("--master-addr=a b: the host must be"));
    }

    #[test]
    fn reads_pairs_and_names_the_key_without_a_value() {
        let read = |text| pairs(&given("rdzv-conf", text));
        let expected = [("a", "1"), ("b", "x=y")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(read(" a = 2 ,b=x=y").unwrap(), [("a".into(), "2".into()), expected[1].clone()]);
        assert_eq!(read("a=3,a=1").unwrap(), expected[..1]);
        assert_eq!(read(" ").unwrap(), []);
        assert_eq!(read("a=1,b").unwrap_err().to_string(), "--rdzv-conf=a=1,b: `b` needs a value, b=VALUE");
        assert!(read("a=1,").unwrap_err().to_string().ends_with("expected KEY=VALUE,KEY=VALUE,…"));
        assert!(read("=1").is_err());
    }
}
