//! The facts that this agent knows when the nodes do not meet; [`crate::diagnose`] draws the conclusions.

use std::net::SocketAddr;
use std::sync::Arc;

use tcpstore::Server;

use super::endpoint::NoRendezvousStore;
use super::master::Master;
use crate::diagnose::{ConnectFailure, Observed, diagnose, port_owner};
use crate::rendezvous::RendezvousError;
use crate::scheduler::Allocation;
use crate::verdict::LaunchFailure;

/// The rendezvous store that this agent uses.
#[derive(Debug)]
pub(super) struct DiagnosticInput {
    pub(super) endpoint: Master,
    /// Only on the agent that hosts it.
    pub(super) server: Option<Arc<Server>>,
}

impl DiagnosticInput {
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
            ..at(&self.endpoint)
        };
        LaunchFailure::from(diagnose(&seen))
    }
}

/// Why the rendezvous store could not be opened.
pub(super) fn not_met(error: NoRendezvousStore, endpoint: &Master) -> LaunchFailure {
    let seen = match error {
        NoRendezvousStore::Unresolved { why } => {
            Observed { connect: Some(ConnectFailure::Unresolved { error: why }), ..at(endpoint) }
        }
        NoRendezvousStore::NotHosted { address, why } if why.kind() == std::io::ErrorKind::AddrInUse => {
            Observed { is_host: true, port_owner: port_owner(address.port()), ..at(endpoint) }
        }
        NoRendezvousStore::NotHosted { address, why } => {
            return LaunchFailure::new(format!("cannot host the rendezvous on {address}: {why}"));
        }
        NoRendezvousStore::NotReached { endpoint, error } => {
            Observed { connect: Some(error.as_ref().into()), port_owner: port_owner(endpoint.port), ..at(&endpoint) }
        }
    };
    LaunchFailure::from(diagnose(&seen))
}

/// The facts about an endpoint that are always known.
fn at(endpoint: &Master) -> Observed {
    let resolved = std::net::ToSocketAddrs::to_socket_addrs(&(endpoint.host.as_str(), endpoint.port));
    let resolved: Vec<SocketAddr> = resolved.map(Iterator::collect).unwrap_or_default();
    Observed {
        endpoint: endpoint.to_string(),
        resolved: resolved.iter().map(SocketAddr::ip).collect(),
        batch: Allocation::batch_job(),
        ..Observed::default()
    }
}
