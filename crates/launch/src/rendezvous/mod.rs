//! How agents agree on the members of a job, repeatedly, as members come, fail and leave.
//!
//! # Roles
//! One agent leads, and only the leader changes the [`State`]. Every agent, including the leader, puts a [`Request`]
//! into the leader's queue and then waits for one key, the *change key*, which the leader sets when the state has
//! changed. A request costs its sender a few operations and a few kilobytes, independently of the number of nodes; the
//! leader's work is proportional to the number of requests.
//!
//! | key | holds | written by |
//! |---|---|---|
//! | `state` | the [`Header`], whose size does not depend on the number of nodes | the leader, by compare-and-set |
//! | `page/TERM.WRITE/N` | the entries of 16 nodes; never changed, deleted when replaced | the leader, before the
//! header that refers to TERM and WRITE |
//! | `requests/TERM` | the queue of requests to the leader of this term | all agents |
//! | `change/N` | set when the header's counter of changes is N | the leader |
//! | `nodes` | the counter that gives each node its id | all agents, by add |
//! | `heartbeat/ID`, `connected/ID`, `shutdown_ack/ID` | a counter, a key to wait for, set at the end | the node itself
//! |
//! | `round/R/master` | the address of the workers' store | group rank 0 |
//!
//! Two pure functions make all decisions: [`decide`] from the time, an agent's [`View`], its identity and its
//! observations ([`Memory`]); and [`Draft::decide`] from the time, the leader's [`Draft`] and the heartbeats that it
//! has read ([`Peers`]). The [`Rendezvous`] and the leader's task execute the decisions over any [`Store`]. So tests
//! can explore every order of joins, crashes and delays without a clock or a socket.
//!
//! # The leader
//! The first agent to come leads. If an agent hosts the store, it takes over as soon as it comes: it sees disconnects,
//! and the others depend on it anyway. When the leader's heartbeat stops, the first agent to notice takes over; a
//! leader that leaves resigns first. Taking over is a compare-and-set of the header, which increments the *term*; the
//! leader of an earlier term fails at its next write and stops. Each term has its own queue, and an agent that still
//! waits for an answer when the term changes sends its request again: no request is lost with a leader, and none is
//! granted twice. The next leader deletes the pages and queues that earlier leaders left: the header contains the last
//! successful write, which determines what else may exist. If a node still wrote to an old queue, that node empties it
//! when it sees the new term.
//!
//! The leader immediately writes changes that others wait for. It writes accumulated changes when they have doubled the
//! group, or after a poll interval. So all writes while N nodes come are O(N) bytes in total, and the change key is set
//! once for all of them.
//!
//! # Rounds
//! A state *gathers* members for a round, then the round *runs*, with ranks that never change within it. Every event
//! that requires other members (a node is lost or leaves, a new node wants to join, a worker failed) turns the running
//! round into the gathering of the next. The members of the old round are expected there: the new round runs as soon as
//! the last of them has come, or is lost. Only the first gathering waits for `last_call_timeout` once the minimum has
//! come. Later gatherings do not, because a late node simply causes the next round. When all members have succeeded,
//! the state is *finished*; when one fails for good, it is *closed*, with the root cause. Both are final.
//!
//! # Failure detection
//! Each agent increments its heartbeat every `keep_alive_interval`. The leader reads all heartbeats in one request, the
//! other agents read the leader's. An observer measures, by its own monotonic clock, how long ago a heartbeat last
//! changed, and considers a node lost after `keep_alive_interval * keep_alive_max_attempt` without a change. Clocks of
//! different hosts are never compared, and time in which an observer did not look does not count against the observed
//! node. The agent that hosts the store may also report that a node has disconnected ([`ConnectedNodes`],
//! [`Rendezvous::disconnects`]), which takes milliseconds. A live node that was removed by mistake notices it, stops
//! its workers, and joins under a new id.
//! # Cost
//! A round costs each node about twenty operations and twenty kilobytes from the first request to the end,
//! independently of the number of nodes. It costs the leader as many operations as there are requests. Only these
//! agents read all pages: one whose wait has reached `join_timeout` or the exit barrier's timeout, one that takes over,
//! and the host at the end.
//!
//! # Versions
//! The first key that every agent reads is `state`, and its first field is the schema. Agents of different schemas
//! refuse each other, in any order.
//!
//! # Use
//! [`Rendezvous::join`] → [`Rendezvous::publish_master`] or [`Rendezvous::await_master`] → run the workers while
//! [`Rendezvous::watch`] waits for a [`Change`] → [`Rendezvous::request_restart`] and join again, or
//! [`Rendezvous::succeed`] and [`Rendezvous::exit_barrier`], or [`Rendezvous::close`], or [`Rendezvous::leave`]; last
//! [`Rendezvous::finish`].
//!
//! Not here: hosting the store, starting workers, and counting restarts.

mod decide;
mod driver;
mod error;
mod header;
mod heartbeat;
mod leader_policy;
mod leader_task;
mod memory;
mod node;
mod options;
mod peers;
mod ranks;
mod reason;
mod request;
mod round;
mod state;
mod store;
mod tcp;
mod transitions;

#[cfg(test)]
mod check;

pub use decide::{Action, Decision, decide};
pub use driver::{Barrier, Rendezvous, Succeeded};
pub(crate) use error::seconds;
pub use error::{Absence, Change, Refusal, RendezvousError, SeenNode, StoreLost};
pub use header::{Header, HeaderPhase, Own, Pages, Survey, View};
pub use heartbeat::{ConnectedNodes, Disconnects};
pub use leader_policy::{Draft, LeaderAction};
pub use memory::{Goal, Memory};
pub use node::{Difference, Job, Me, Node, NodeId};
pub use options::{Options, OptionsError};
pub use peers::Peers;
pub use ranks::RankAssignment;
pub use reason::Reason;
pub use request::{Request, Want};
pub use round::{RankSet, Round, RoundMember};
pub use state::{Cause, Closing, Lost, Member, Refused, RootCause, RoundPhase, SCHEMA, State};
pub use store::{MemoryStore, Store, StoreError};
pub use tcp::TcpStore;
