//! The facts that were observed before a rendezvous failed.

use std::net::IpAddr;
use std::time::Duration;

use super::port::PortOwner;
use crate::rendezvous::Absence;
use crate::scheduler::Allocation;

/// The facts that were observed before the rendezvous failed. Unknown facts are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// The configured address that all nodes must reach: `host:port`.
    pub endpoint: String,
    /// The addresses of the endpoint's host on this node.
    pub resolved: Vec<IpAddr>,
    /// True if this agent hosts the store.
    pub is_host: bool,
    /// The addresses of this node that others may reach, for advice.
    pub own_addresses: Vec<IpAddr>,
    /// Why this agent never reached the store.
    pub connect: Option<ConnectFailure>,
    /// The owner of the port on which this agent wanted to listen.
    pub port_owner: Option<PortOwner>,
    /// Which nodes came and which did not, if the store was reached.
    pub absence: Option<Absence>,
    /// The batch job that this agent belongs to.
    pub batch: Option<Allocation>,
    /// Peers that the store refused, with the reasons.
    pub refused: Vec<(String, String)>,
}

/// Why the store was not reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectFailure {
    /// The endpoint's host name has no address here.
    Unresolved {
        /// The resolver's error.
        error: String,
    },
    /// The host answers, but no process listens on the port.
    Refused {
        /// How long the connection was retried.
        tried: Duration,
    },
    /// The host does not answer, or there is no route to it.
    Unreachable {
        /// The operating system's error.
        error: String,
        /// How long the connection was retried.
        tried: Duration,
    },
    /// The connection was accepted, but no answer arrived.
    Mute {
        /// How long it waited for an answer.
        tried: Duration,
    },
    /// Something other than a store answers.
    Stranger {
        /// Its first bytes, as text.
        got: String,
    },
    /// The listener hangs up immediately.
    HungUp,
    /// Any other failure.
    Other {
        /// The operating system's error.
        error: String,
    },
}

impl From<&tcpstore::Error> for ConnectFailure {
    fn from(error: &tcpstore::Error) -> Self {
        use tcpstore::Kind;
        let tried = error.elapsed;
        match &error.kind {
            Kind::Unresolved(error) => ConnectFailure::Unresolved { error: error.to_string() },
            Kind::Refused => ConnectFailure::Refused { tried },
            Kind::Unreachable(error) => ConnectFailure::Unreachable { error: error.to_string(), tried },
            Kind::Mute => ConnectFailure::Mute { tried },
            Kind::NotAStore { got } => ConnectFailure::Stranger { got: got.clone() },
            Kind::HungUp => ConnectFailure::HungUp,
            other => ConnectFailure::Other { error: other.to_string() },
        }
    }
}
