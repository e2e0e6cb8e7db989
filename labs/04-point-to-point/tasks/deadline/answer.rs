//! Task 4: a receive that gives up.
//!
//! `recv` waits up to the group's timeout, which is half an hour with Gloo. To notice a silent peer earlier, wait with a
//! deadline and check the error: the peer may be late or gone. A late peer is worth another try; a peer that is gone is not.

use std::time::Duration;

use anyhow::Result;
use c10d::{ErrorKind, ProcessGroup, Rank};
use tch::{Kind, Tensor};

/// The outcome of a receive.
#[derive(Debug)]
pub enum Received {
    /// The message arrived.
    Message(Tensor),
    /// The message did not arrive in time, but the peer is still connected.
    Late,
    /// The message will never arrive: the peer has closed its connection.
    Gone,
}

/// Receives `length` numbers from a peer, but waits no longer than `patience`. Returns all other failures as errors.
pub fn deadline(group: &ProcessGroup, from: Rank, length: i64, patience: Duration) -> Result<Received> {
    let buffer = Tensor::zeros([length], (Kind::Double, group.device()));
    // <answer>
    //~ // `Work::wait_for` takes a deadline; an error's `kind()` is its category: `ErrorKind::Timeout`, `ErrorKind::PeerGone`, …
    //~ todo!("receive with a deadline, and distinguish late from gone")
    // A peer that is gone may cause an error when the receive starts or in the wait.
    let received = group.irecv(buffer, from, 0).and_then(|work| work.wait_for(patience));
    match received {
        Ok(message) => Ok(Received::Message(message)),
        Err(error) => match error.kind() {
            ErrorKind::Timeout => Ok(Received::Late),
            ErrorKind::PeerGone => Ok(Received::Gone),
            _ => Err(error.into()),
        },
    }
    // </answer>
}
