//! Wrong answers to `deadline`.

use std::time::Duration;

use anyhow::Result;
use c10d::{ErrorKind, ProcessGroup, Rank};
use lockstep_answers::edit;
use tch::{Kind, Tensor};

use crate::deadline::Received;

/// Waits as long as the group's timeout allows.
#[edit(work.wait_for(patience) => work.wait())]
pub fn forever() {}

/// Treats every error as a deadline that has passed.
#[edit(Ok(Received::Gone) => Ok(Received::Late))]
#[edit(Err(error.into()) => Ok(Received::Late))]
pub fn any_error() {}

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

/// Receives messages of another tag.
#[edit(group.irecv(buffer, from, 0) => group.irecv(buffer, from, 1))]
pub fn other_tag() {}

/// Returns an error when the deadline has passed.
pub fn error(group: &ProcessGroup, from: Rank, length: i64, patience: Duration) -> Result<Received> {
    let buffer = Tensor::zeros([length], (Kind::Double, group.device()));
    let message = group.irecv(buffer, from, 0)?.wait_for(patience)?;
    Ok(Received::Message(message))
}

/// Blocks in `recv`, and compares the clock with the deadline when it has returned.
pub fn clock_after(group: &ProcessGroup, from: Rank, length: i64, patience: Duration) -> Result<Received> {
    let mut buffer = Tensor::zeros([length], (Kind::Double, group.device()));
    let begun = std::time::Instant::now();
    match group.recv(&mut buffer, from, 0) {
        Ok(()) if begun.elapsed() <= patience => Ok(Received::Message(buffer)),
        Ok(()) => Ok(Received::Late),
        Err(_) => Ok(Received::Gone),
    }
}

/// Tries again after a timeout: with Gloo the group has closed by then.
#[edit(Ok(Received::Late) =>
    Ok(Received::Message(group.irecv(Tensor::zeros([length], (Kind::Double, group.device())), from, 0)?.wait_for(patience)?))
)]
pub fn tries_again() {}

/// Treats every error as a peer that is gone.
#[edit(Ok(Received::Late) => Ok(Received::Gone))]
#[edit(Err(error.into()) => Ok(Received::Gone))]
pub fn all_gone() {}

/// Treats every error but a passed deadline as a peer that is gone.
#[edit(Err(error.into()) => Ok(Received::Gone))]
pub fn other_is_gone() {}

/// Treats every error before the deadline as a peer that is gone.
pub fn by_time(group: &ProcessGroup, from: Rank, length: i64, patience: Duration) -> Result<Received> {
    let buffer = Tensor::zeros([length], (Kind::Double, group.device()));
    let begin = std::time::Instant::now();
    match group.irecv(buffer, from, 0).and_then(|work| work.wait_for(patience)) {
        Ok(message) => Ok(Received::Message(message)),
        // An error before the deadline: the connection is closed.
        Err(_) if begin.elapsed() < patience => Ok(Received::Gone),
        Err(error) if error.kind() == ErrorKind::Timeout => Ok(Received::Late),
        Err(error) => Err(error.into()),
    }
}

/// Tries three times.
pub fn three_tries(group: &ProcessGroup, from: Rank, length: i64, patience: Duration) -> Result<Received> {
    let buffer = Tensor::zeros([length], (Kind::Double, group.device()));
    // A late peer is worth another try.
    for _ in 0..3 {
        match group.irecv(buffer.shallow_clone(), from, 0).and_then(|work| work.wait_for(patience)) {
            Ok(message) => return Ok(Received::Message(message)),
            Err(error) if error.kind() == ErrorKind::Timeout => continue,
            Err(error) if error.kind() == ErrorKind::PeerGone => return Ok(Received::Gone),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Received::Late)
}

/// Waits for whole seconds only.
#[edit(work.wait_for(patience) => work.wait_for(Duration::from_secs(patience.as_secs())))]
pub fn whole_seconds() {}

/// Waits twice as long.
pub fn twice(group: &ProcessGroup, from: Rank, length: i64, patience: Duration) -> Result<Received> {
    crate::deadline::deadline(group, from, length, 2 * patience)
}

/// Waits a second more, for a message that is only just late.
pub fn grace(group: &ProcessGroup, from: Rank, length: i64, patience: Duration) -> Result<Received> {
    crate::deadline::deadline(group, from, length, patience + Duration::from_secs(1))
}
