//! How agents agree on who takes part, again and again as members come, fail and go.
//!
//! # Who does what
//! One agent leads, and it alone changes the [`State`]. Every agent, the leader among them, asks for what it wants by putting a
//! [`Request`] into the leader's queue, and then waits for one key, the *bell*, that the leader sets when there is news.
//! A request costs the one who asks a few operations and a few kilobytes, however many nodes there are; the leader's work is
//! proportional to the number of requests.
//!
//! | key | holds | written by |
//! |---|---|---|
//! | `state` | the [`Header`], whose size does not depend on the number of nodes | the leader, by compare-and-set |
//! | `page/TERM.WRITE/N` | what the state says of 16 nodes; never changed, deleted when replaced | the leader, before the header that names TERM and WRITE |
//! | `requests/TERM` | the queue of requests to the leader of this term | everybody |
//! | `bell/N` | set when the header's `news` is N | the leader |
//! | `nodes` | counts the nodes, so that each has a number | everybody, by add |
//! | `alive/ID`, `presence/ID`, `bye/ID` | heartbeat, a key to wait for, farewell | the node itself |
//! | `round/R/master` | the address of the workers' store | group rank 0 |
//!
//! Everything is decided by two pure functions: [`decide`] of the time, what an agent sees ([`View`]), who it is and what it
//! has observed ([`Memory`]); and [`Draft::lead`] of the time, the leader's [`Draft`] and the heartbeats that it has read
//! ([`Peers`]). The [`Rendezvous`] and the leader's task carry the decisions out over any [`Store`]; they decide nothing
//! themselves. So tests explore every order of joins, crashes and delays without a clock or a socket.
//!
//! # Who leads
//! The first to come. If the store lives in an agent, that agent takes over as soon as it comes: it sees whose connection
//! closes, and nobody outlives it anyway. When the leader's heart stops, whoever notices first takes over; a leader
//! that goes resigns first. Taking over is one compare-and-set of the header, which raises the *term*; a leader of an earlier
//! term fails at its next write and stops. Each term has a queue of its own, so whoever still waits for an answer when the
//! term changes asks again: no request is lost with a leader, and none is granted twice. What the leaders of earlier terms left
//! in the store, pages and queues, goes as soon as another leads: the header names the last write that succeeded, and from that
//! follows what may be there. A queue to which somebody still wrote is emptied by that node, once it sees the new term.
//!
//! The leader writes at once what others wait for. What merely adds up it writes when that has doubled the group, or a poll is
//! over. So all writes while N nodes come are together O(N) bytes, and the bell rings once for all of them.
//!
//! # How it goes
//! A state *gathers* members for a round, then the round *runs*, with ranks that never change within it. Whatever calls for
//! other members (a node is lost or leaves, a newcomer asks in, a worker failed) turns the running round into the gathering
//! of the next. Members of the old round are expected there: the new one runs as soon as the last of them has come, or
//! is given up. Only the very first gathering waits for `last_call_timeout` once the minimum has come; a re-formed round does
//! not, since whoever comes later simply causes the next round. When all members have succeeded the state is *finished*;
//! when one fails for good it is *closed*, with the root cause. Neither ever changes again.
//!
//! # Liveness
//! Each agent counts up a key of its own every `keep_alive_interval`. The leader reads all of them in one request, everybody
//! else reads the leader's. They measure, by their own monotonic clock, how long ago a count last changed, and give up
//! a node that was silent for `keep_alive_interval * keep_alive_max_attempt`. No two clocks are ever compared, and time in which
//! an observer did not look does not count against the observed. The agent that hosts the store may also say that a node's
//! connection closed ([`Presence`], [`Rendezvous::closings`]): that is known within milliseconds. A live node that was struck
//! out by mistake learns it, stops its workers, and joins under a new number.
//!
//! # What it costs
//! A round costs each node some twenty operations and twenty kilobytes from the first request to the farewell, whatever
//! the number of nodes, and as many operations of the leader as there are requests. All pages are read only by an agent whose
//! wait has reached `join_timeout` or the exit barrier's timeout, by one that takes over, and by the host at the end.
//!
//! # Versions
//! The first key that anybody reads is `state`, and the first field of it is the schema. Agents of different schemas refuse
//! each other, whoever came first.
//!
//! # For the agent
//! [`Rendezvous::join`] → [`Rendezvous::publish_master`] or [`Rendezvous::await_master`] → run the workers while
//! [`Rendezvous::watch`] waits for a [`Change`] → [`Rendezvous::request_restart`] and join again, or
//! [`Rendezvous::succeed`] and [`Rendezvous::exit_barrier`], or [`Rendezvous::close`], or [`Rendezvous::leave`]; last
//! [`Rendezvous::finish`].
//!
//! Left out: hosting the store, starting workers, and counting restarts.

mod decide;
mod driver;
mod error;
mod header;
mod heart;
mod leader;
mod leader_policy;
mod memory;
mod node;
mod options;
mod peers;
mod reason;
mod request;
mod round;
mod state;
mod store;
mod tcp;

#[cfg(test)]
mod check;

pub use decide::{Action, Decision, decide};
pub use driver::{Barrier, Rendezvous, Succeeded};
pub(crate) use error::seconds;
pub use error::{Absence, Change, Refusal, RendezvousError, Seen, StoreLost};
pub use header::{Header, Own, Pages, Stand, Survey, View};
pub use heart::{Closings, Presence};
pub use leader_policy::{Draft, Lead};
pub use memory::{Goal, Memory};
pub use node::{Difference, Job, Me, Node, NodeId};
pub use options::{Options, OptionsError};
pub use peers::Peers;
pub use reason::Reason;
pub use request::{Request, Want};
pub use round::{RankSet, Round, RoundMember, Seat};
pub use state::{Cause, Closing, Lost, Member, Phase, Refused, RootCause, SCHEMA, State};
pub use store::{MemoryStore, Store, StoreError};
pub use tcp::TcpStore;
