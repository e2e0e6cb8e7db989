//! How agents agree on who takes part, again and again as members come, fail and go.
//!
//! What is shared is one JSON value in a store ([`State`]), changed only by compare-and-set. Every change and every wait is
//! decided by a pure function, [`decide`], of the time, that value, who I am, and what I have observed ([`Memory`]). The
//! [`Rendezvous`] carries the decisions out over any [`Store`]; it decides nothing itself. So tests explore every order
//! of joins, crashes and delays without a clock or a socket.
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
//! Each agent counts up a key of its own every `keep_alive_interval`. Others measure, by their own monotonic clock, how long
//! ago that count last changed, and strike out a node that was silent for `keep_alive_interval * keep_alive_max_attempt`. No
//! two clocks are ever compared, and time in which an observer did not look does not count against the observed. The agent
//! that hosts the store may also say that a node's connection closed ([`Presence`], [`Rendezvous::closings`]): that
//! is known within milliseconds. A live node that was struck out by mistake learns it, stops its workers, and joins anew.
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
mod heart;
mod memory;
mod node;
mod options;
mod reason;
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
pub use heart::{Closings, Presence};
pub use memory::{Goal, Memory, watched};
pub use node::{Difference, Job, Me, Node, NodeId};
pub use options::{Options, OptionsError};
pub use reason::Reason;
pub use round::{RankSet, Round, RoundMember};
pub use state::{Cause, Closing, Lost, Member, Phase, RootCause, SCHEMA, State};
pub use store::{MemoryStore, Store, StoreError};
pub use tcp::TcpStore;
