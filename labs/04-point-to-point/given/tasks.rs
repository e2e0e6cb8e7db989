//! How the grader's inputs reach each task's function, and its results the grader. There is nothing to change here.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use c10d::{ProcessGroup, Rank, Store};
use lockstep_exercise::{Task, numbers, tensor};
use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use crate::deadline::Received;

/// Inputs: by rank, the numbers of its tensor.
pub fn ring(answer: fn(&ProcessGroup, &Tensor) -> Result<Vec<Tensor>>) -> Task {
    Task::in_group("ring", move |group, by_rank: Vec<Vec<f64>>| {
        let all = answer(group, &tensor(&by_rank[group.rank().get()]))?;
        all.iter().map(numbers).collect::<Result<Vec<_>>>()
    })
}

/// Inputs: by rank, the numbers of its piece.
pub fn exchange(answer: fn(&ProcessGroup, &Tensor) -> Result<Tensor>) -> Task {
    Task::in_group("exchange", move |group, by_rank: Vec<Vec<f64>>| {
        numbers(&answer(group, &tensor(&by_rank[group.rank().get()]))?)
    })
}

/// What rank 1 made of the batches.
#[derive(Default, Serialize)]
struct Prefetched {
    results: Vec<f64>,
    /// For each batch, whether it became another one while it was computed on.
    changed: Vec<bool>,
    /// For each batch, whether the one after it came meanwhile.
    overlapped: Vec<bool>,
}

/// What `prefetch` is given to compute with.
type Compute<'a> = &'a mut dyn FnMut(&Tensor) -> f64;

/// Inputs: batches of one length. Rank 0 sends them, rank 1 gets the answer's results.
pub fn prefetch(answer: fn(&ProcessGroup, usize, i64, Compute<'_>) -> Result<Vec<f64>>) -> Task {
    /// The next batch has a second to come. If nobody receives it, it does not.
    const PATIENCE: Duration = Duration::from_secs(1);
    /// From the end of the send to that of the receive.
    const ARRIVAL: Duration = Duration::from_millis(50);
    let key = |number: usize| format!("prefetch/sent/{number}");
    Task::in_group("prefetch", move |group, batches: Vec<Vec<f64>>| {
        let mut seen = Prefetched::default();
        if group.rank().is_zero() {
            for (number, batch) in batches.iter().enumerate() {
                group.send(&tensor(batch), Rank::new(1), 0)?;
                group.store().set(&key(number), "")?;
            }
            return Ok(seen);
        }
        let (mut changed, mut overlapped) = (Vec::new(), Vec::new());
        let mut compute = |batch: &Tensor| {
            let at_first = batch.copy();
            let next = overlapped.len() + 1;
            overlapped.push(next < batches.len() && there_within(group.store(), &key(next), PATIENCE));
            sleep(ARRIVAL);
            changed.push(at_first != *batch);
            batch.sum(Kind::Double).double_value(&[])
        };
        let length = batches.first().map_or(0, Vec::len);
        seen.results = answer(group, batches.len(), i64::try_from(length)?, &mut compute)?;
        (seen.changed, seen.overlapped) = (changed, overlapped);
        Ok(seen)
    })
}

/// What a peer does.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Peer {
    /// It sends at once.
    Sends,
    /// It sends long after the deadline.
    IsLate,
    /// It closes its connections.
    Leaves,
}

/// What `deadline` gave.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    Message(Vec<f64>),
    Late,
    Gone,
}

/// Inputs: what the peer does, the numbers that it sends, the milliseconds of patience. The peer is rank 1, and rank 0 gets
/// the answer. Gloo closes a group in which a deadline has passed, so each case has one of its own.
pub fn deadline(answer: fn(&ProcessGroup, Rank, i64, Duration) -> Result<Received>) -> Task {
    let (patient, peer) = (Rank::ZERO, Rank::new(1));
    Task::in_group("deadline", move |all, (does, values, patience_ms): (Peer, Vec<f64>, u64)| {
        let group = all.new_group(&[patient, peer], &Default::default())?.context("both ranks are members")?;
        let key = |what: &str| format!("deadline/{}/{what}", group.name());
        let (left, decided) = (key("left"), key("decided"));
        if all.rank() == peer {
            act(all.store(), group, does, &tensor(&values), &left, &decided)?;
            return Ok(None);
        }
        if let Peer::Leaves = does {
            there_within(all.store(), &left, Duration::from_secs(5));
        }
        let received = answer(&group, peer, i64::try_from(values.len())?, Duration::from_millis(patience_ms));
        all.store().set(&decided, "")?;
        Ok(Some(match received? {
            Received::Message(message) => Outcome::Message(numbers(&message)?),
            Received::Late => Outcome::Late,
            Received::Gone => Outcome::Gone,
        }))
    })
}

fn act(store: &Store, group: ProcessGroup, does: Peer, message: &Tensor, left: &str, decided: &str) -> Result<()> {
    match does {
        Peer::Sends => group.send(message, Rank::ZERO, 0)?,
        // Who has given up does not receive any more.
        Peer::IsLate if !there_within(store, decided, Duration::from_secs(3)) => {
            drop(group.send(message, Rank::ZERO, 0))
        }
        Peer::IsLate => {}
        Peer::Leaves => {
            drop(group);
            store.set(left, "")?;
        }
    }
    Ok(())
}

/// Whether somebody has set the key before the time is over.
fn there_within(store: &Store, key: &str, limit: Duration) -> bool {
    let begun = Instant::now();
    loop {
        if store.check(&[key]).unwrap_or(false) {
            return true;
        }
        if begun.elapsed() >= limit {
            return false;
        }
        sleep(Duration::from_millis(2));
    }
}
