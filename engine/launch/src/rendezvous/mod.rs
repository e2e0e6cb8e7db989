//! How agents agree on the members of a job, repeatedly, as members come, fail and leave.
//!
//! # One authority
//! The agent that hosts the endpoint decides, alone and in memory: it is the [`Authority`] of the job. The others send it [`Request`]s and
//! get their own [`View`]: the round, their place in it, and the few facts that all need. Nobody else holds shared state. The agent in the
//! authority's process calls it directly; a job on one node needs no connection. Others connect to the endpoint's port, which is that of a
//! TCPStore, begin as a client of the store, and then leave its protocol ([`tcpstore::wire::SWITCH`]).
//!
//! Two pure machines make all decisions: [`Authority`], events and time in, views out; and [`Client`], a view and time in, an
//! [`Action`] out. [`Host`] and [`Rendezvous`] carry them out. So tests can explore every order of joins, crashes and delays without
//! a clock or a socket.
//!
//! # Rounds
//! The authority *gathers* members for a round, then the round *runs*, with ranks that never change within it. Every event that
//! requires other members (a node is lost or leaves, a new node wants to join, a worker failed) turns the running round into the
//! gathering of the next. The members of the old round are expected there: the new round runs as soon as the last of them has come,
//! or is lost. Only the first gathering waits for `last_call_timeout` once the minimum has come. Later gatherings do not, because a
//! late node simply causes the next round. When all members have succeeded, the job is *finished*; when one fails for good, it is
//! *closed*, with the root cause. Both are final.
//!
//! # Views
//! A view is complete, and only the latest counts. So an agent that reads slowly misses nothing that matters, and the authority holds
//! one view for it, not a queue. An agent that was removed by mistake learns it from its view, stops its workers, and joins under a new id.
//!
//! # Lost nodes
//! A node whose connection closes is lost: its process has ended. Both sides also send beats every `keep_alive_interval`; a node that
//! was silent for `keep_alive_interval * keep_alive_max_attempt` is lost, too. Clocks of different hosts are never compared, and
//! time in which an observer did not look does not count against the observed node.
//!
//! # Versions
//! The first thing that every agent reads is the [`SCHEMA`]: under the key of the store that agents before schema 5 kept their state
//! in, and in the authority's greeting. Agents of different schemas refuse each other, in any order.
//!
//! # Use
//! [`Rendezvous::join`] → [`Rendezvous::publish_master`] or [`Rendezvous::await_master`] → run the workers while
//! [`Rendezvous::watch`] waits for a [`Change`] → [`Rendezvous::request_restart`] and join again, or
//! [`Rendezvous::succeed`] and [`Rendezvous::exit_barrier`], or [`Rendezvous::close`], or [`Rendezvous::leave`]; last
//! [`Rendezvous::finish`].
//!
//! Not here: hosting the store, starting workers, and counting restarts.

mod authority;
mod client;
mod connection;
mod driver;
mod error;
mod host;
mod message;
mod options;
mod state;
mod succession;

#[cfg(test)]
mod check;
#[cfg(test)]
pub(crate) mod tests;
#[cfg(test)]
mod world;

pub use authority::{Authority, Conn, Event, LOCAL};
pub use client::{Action, Client, Goal, RankSet, Round};
pub use connection::{Link, LinkState, Place, Task};
pub use driver::{Barrier, Rendezvous, Succeeded};
pub(crate) use error::seconds;
pub use error::{Absence, Change, Reason, Refusal, RendezvousError, StoreLost};
pub use host::Host;
pub use message::{
    Follow, Greeting, OwnPart, Phase, Request, RoundPlace, SCHEMA, Succession, Successor, Survey, Taken, ToAgent,
    ToAuthority, View,
};
pub use options::{OptionsError, RendezvousOptions};
pub use state::{
    Cause, Closing, Difference, JobIdentity, Lost, Member, Node, NodeId, RankAssignment, RootCause, RoundPhase,
    SeenNode, State,
};
pub use succession::Candidacy;
