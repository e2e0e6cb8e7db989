//! What this agent knows when the nodes do not meet: facts, from which [`crate::diagnose`] draws conclusions.

use std::net::SocketAddr;
use std::sync::Arc;

use tcpstore::Server;

use super::endpoint::NoMeeting;
use super::master::Master;
use crate::diagnose::{Batch, ConnectFailure, Observed, diagnose, port_owner};
use crate::rendezvous::RendezvousError;

/// The place where the nodes meet.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) endpoint: Master,
    /// Only where this agent hosts it.
    pub(super) server: Option<Arc<Server>>,
}

impl Seen {
    /// Why no round came about, with all that may explain it.
    pub(super) fn not_formed(&self, error: RendezvousError) -> String {
        let RendezvousError::Timeout(absence) = error else { return error.to_string() };
        let refusals = self.server.as_ref().map(|server| server.refusals()).unwrap_or_default();
        let seen = Observed {
            is_host: self.server.is_some(),
            absence: Some(*absence),
            turned_away: refusals.iter().map(|refusal| (refusal.address.to_string(), refusal.reason.clone())).collect(),
            ..at(&self.endpoint)
        };
        diagnose(&seen).to_string()
    }
}

/// Why the rendezvous could not be opened at all.
pub(super) fn not_met(error: NoMeeting, endpoint: &Master) -> String {
    let seen = match error {
        NoMeeting::Unresolved { why } => {
            Observed { connect: Some(ConnectFailure::Unresolved { error: why }), ..at(endpoint) }
        }
        NoMeeting::NotHosted { address, why } if why.kind() == std::io::ErrorKind::AddrInUse => {
            Observed { is_host: true, port_owner: port_owner(address.port()), ..at(endpoint) }
        }
        NoMeeting::NotHosted { address, why } => return format!("cannot host the rendezvous on {address}: {why}"),
        NoMeeting::NotReached { endpoint, error } => {
            Observed { connect: Some(error.as_ref().into()), port_owner: port_owner(endpoint.port), ..at(&endpoint) }
        }
    };
    diagnose(&seen).to_string()
}

/// What is known of an endpoint whatever happened.
fn at(endpoint: &Master) -> Observed {
    let resolved = std::net::ToSocketAddrs::to_socket_addrs(&(endpoint.host.as_str(), endpoint.port));
    let resolved: Vec<SocketAddr> = resolved.map(Iterator::collect).unwrap_or_default();
    Observed {
        endpoint: endpoint.to_string(),
        resolved: resolved.iter().map(SocketAddr::ip).collect(),
        batch: Batch::here(),
        ..Observed::default()
    }
}
