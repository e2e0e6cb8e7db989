//! How the agents of a job find each other: the flags of a rendezvous.

use super::endpoint::{self, Endpoint};
use super::error::ConfigError;
use super::flags::Flags;
use super::given::{Given, Source};
use super::host::HostInfo;
use super::nodes::Nodes;
use super::values::whole;

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
    /// One agent on one host: the store is not reachable from others.
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
        let conf = endpoint::pairs(&flags.rdzv_conf)?;
        let mut notices = Vec::new();
        let (backend, endpoint) = match flags.rdzv_backend.text.as_str() {
            _ if flags.standalone => (Backend::C10d, standalone(nodes)?),
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
        let run_id = run_id(flags, host);
        let local_addr = Some(flags.local_addr.text.clone()).filter(|addr| !addr.is_empty());
        Ok((Rendezvous { backend, endpoint, run_id, conf, local_addr, standalone: flags.standalone }, notices))
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
    empty.then(|| format!("{master}: only a static rendezvous uses it; c10d goes to localhost:{} unless --rdzv-endpoint says otherwise", endpoint::DEFAULT_PORT))
}

/// A random id for `--standalone`, or if the id is empty.
fn run_id(flags: &Flags, host: &HostInfo<'_>) -> String {
    if !flags.standalone && !flags.rdzv_id.text.is_empty() {
        return flags.rdzv_id.text.clone();
    }
    // A version 4 UUID (RFC 9562, section 5.4), as in torchrun.
    let bits = host.random & !(0xf << 76) & !(0x3 << 62) | 0x4 << 76 | 0x2 << 62;
    let hex = format!("{bits:032x}");
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

#[cfg(test)]
mod tests {
    use super::super::testing::{config, refused, try_config};
    use super::*;

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
        assert!(try_config(&["--rdzv-backend=c10d", "--node-rank=9"]).is_ok(), "c10d assigns the ranks");
    }
}
