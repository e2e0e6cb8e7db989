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
pub fn tries_again(group: &ProcessGroup, from: Rank, length: i64, patience: Duration) -> Result<Received> {
    let receive = || {
        let buffer = Tensor::zeros([length], (Kind::Double, group.device()));
        group.irecv(buffer, from, 0).and_then(|work| work.wait_for(patience))
    };
    match receive() {
        Ok(message) => Ok(Received::Message(message)),
        Err(error) if error.kind() == ErrorKind::PeerGone => Ok(Received::Gone),
        Err(_) => Ok(Received::Message(receive()?)),
    }
}

/// Treats every error as a peer that is gone.
pub fn all_gone(group: &ProcessGroup, from: Rank, length: i64, patience: Duration) -> Result<Received> {
    let buffer = Tensor::zeros([length], (Kind::Double, group.device()));
    let received = group.irecv(buffer, from, 0).and_then(|work| work.wait_for(patience));
    Ok(received.map_or(Received::Gone, Received::Message))
}

/// Treats every error but a passed deadline as a peer that is gone.
pub fn other_is_gone(group: &ProcessGroup, from: Rank, length: i64, patience: Duration) -> Result<Received> {
    let buffer = Tensor::zeros([length], (Kind::Double, group.device()));
    match group.irecv(buffer, from, 0).and_then(|work| work.wait_for(patience)) {
        Ok(message) => Ok(Received::Message(message)),
        Err(error) if error.kind() == ErrorKind::Timeout => Ok(Received::Late),
        Err(_) => Ok(Received::Gone),
    }
}

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
pub fn whole_seconds(group: &ProcessGroup, from: Rank, length: i64, patience: Duration) -> Result<Received> {
    let buffer = Tensor::zeros([length], (Kind::Double, group.device()));
    let whole = Duration::from_secs(patience.as_secs());
    match group.irecv(buffer, from, 0).and_then(|work| work.wait_for(whole)) {
        Ok(message) => Ok(Received::Message(message)),
        Err(error) if error.kind() == ErrorKind::Timeout => Ok(Received::Late),
        Err(error) if error.kind() == ErrorKind::PeerGone => Ok(Received::Gone),
        Err(error) => Err(error.into()),
    }
}

/// Waits twice as long.
pub fn twice(group: &ProcessGroup, from: Rank, length: i64, patience: Duration) -> Result<Received> {
    crate::deadline::deadline(group, from, length, 2 * patience)
}

/// Waits a second more, for a message that is only just late.
pub fn grace(group: &ProcessGroup, from: Rank, length: i64, patience: Duration) -> Result<Received> {
    crate::deadline::deadline(group, from, length, patience + Duration::from_secs(1))
}
