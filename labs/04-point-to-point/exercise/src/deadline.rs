//! Task 4: a receive that gives up.
//!
//! `recv` waits as long as the group's timeout says: half an hour, with Gloo. Whoever wants to know earlier that a peer is
//! silent waits with a deadline of his own, and asks the error what it was: the peer may be late, or gone. One is worth another
//! try, the other is not.

use std::time::Duration;

use anyhow::Result;
use c10d::{Fault, ProcessGroup, Rank};
use tch::{Kind, Tensor};

/// What became of a message.
#[derive(Debug)]
pub enum Received {
    /// It came.
    Message(Tensor),
    /// It did not come in time, and the peer is still connected.
    Late,
    /// It will never come: the peer has closed its connection.
    Gone,
}

/// Receives `length` numbers from a peer, but waits no longer than `patience`. Faults of other kinds are errors.
pub fn deadline(group: &ProcessGroup, from: Rank, length: i64, patience: Duration) -> Result<Received> {
    let buffer = Tensor::zeros([length], (Kind::Double, group.device()));
    // `Work::wait_for` takes a deadline; an error's `fault()` says who is to blame: `Fault::Timeout`, `Fault::PeerGone`, …
    todo!("receive with a deadline, and tell late from gone")
}
