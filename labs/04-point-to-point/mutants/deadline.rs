//! Wrong answers to `deadline`.

use std::time::Duration;

use anyhow::Result;
use c10d::{ErrorKind, ProcessGroup, Rank};
use tch::{Kind, Tensor};

use crate::deadline::Received;

/// Waits as long as the group's timeout allows.
pub fn forever(group: &ProcessGroup, from: Rank, length: i64, _: Duration) -> Result<Received> {
    let buffer = Tensor::zeros([length], (Kind::Double, group.device()));
    match group.irecv(buffer, from, 0).and_then(|work| work.wait()) {
        Ok(message) => Ok(Received::Message(message)),
        Err(error) => match error.kind() {
            ErrorKind::Timeout => Ok(Received::Late),
            ErrorKind::PeerGone => Ok(Received::Gone),
            _ => Err(error.into()),
        },
    }
}

/// Treats every error as a deadline that has passed.
pub fn any_error(group: &ProcessGroup, from: Rank, length: i64, patience: Duration) -> Result<Received> {
    let buffer = Tensor::zeros([length], (Kind::Double, group.device()));
    match group.irecv(buffer, from, 0).and_then(|work| work.wait_for(patience)) {
        Ok(message) => Ok(Received::Message(message)),
        Err(_) => Ok(Received::Late),
    }
}

/// Polls `is_completed` until the deadline, but with Gloo it never becomes true.
pub fn polls(group: &ProcessGroup, from: Rank, length: i64, patience: Duration) -> Result<Received> {
    let buffer = Tensor::zeros([length], (Kind::Double, group.device()));
    let work = group.irecv(buffer, from, 0)?;
    let begun = std::time::Instant::now();
    while begun.elapsed() < patience {
        if work.is_completed() {
            return Ok(Received::Message(work.wait()?));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(Received::Late)
}

/// Returns an error when the deadline has passed.
pub fn error(group: &ProcessGroup, from: Rank, length: i64, patience: Duration) -> Result<Received> {
    let buffer = Tensor::zeros([length], (Kind::Double, group.device()));
    let message = group.irecv(buffer, from, 0)?.wait_for(patience)?;
    Ok(Received::Message(message))
}
