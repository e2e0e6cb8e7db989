//! Passes the grader's inputs to each task's function and its results back. You do not change this file.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use c10d::{ProcessGroup, Rank, Store};
use lockstep_exercise::{Task, numbers, tensor, timed};
use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use crate::deadline::Received;

/// A result, and the calls that it took: the operation with its peer, and whether its end was waited for.
type Called<T> = (T, Vec<(String, bool)>);

fn called<T>(group: &ProcessGroup, answer: impl FnOnce() -> Result<T>) -> Result<Called<T>> {
    group.record_calls();
    let result = answer()?;
    Ok((result, group.called().into_iter().map(|called| (called.call.operation, called.waited)).collect()))
}

/// Inputs: the numbers of each rank's tensor. Results with the calls.
pub fn ring(answer: fn(&ProcessGroup, &Tensor) -> Result<Vec<Tensor>>) -> Task {
    Task::in_group("ring", move |group, by_rank: Vec<Vec<f64>>| {
        let (all, calls) = called(group, || answer(group, &tensor(&by_rank[group.rank().get()])))?;
        Ok((all.iter().map(numbers).collect::<Result<Vec<_>>>()?, calls))
    })
}

/// Inputs: the numbers of each rank's piece. Results with the calls, each with the number of earlier ones that had been waited for.
pub fn exchange(answer: fn(&ProcessGroup, &Tensor) -> Result<Tensor>) -> Task {
    Task::in_group("exchange", move |group, by_rank: Vec<Vec<f64>>| {
        let (row, calls) = called(group, || answer(group, &tensor(&by_rank[group.rank().get()])))?;
        let waited_before: Vec<usize> = group.called().iter().map(|called| called.waited_before).collect();
        Ok((numbers(&row)?, calls, waited_before))
    })
}

/// What rank 1 did with the batches.
#[derive(Default, Serialize)]
struct Prefetched {
    results: Vec<f64>,
    /// For each batch, whether it changed during the computation.
    changed: Vec<bool>,
    /// For each batch, whether the next one was sent while a receive was in progress during the computation.
    overlapped: Vec<bool>,
    /// For each batch, how many had arrived when the computation began, and how many receives were in progress then.
    arrived: Vec<usize>,
    coming: Vec<usize>,
    started: usize,
}

/// The computation that `prefetch` calls.
type Compute<'a> = &'a mut dyn FnMut(&Tensor) -> f64;

/// Inputs: batches of the same length. Rank 0 sends them, each when the computation on the one before has begun, so that what this one reads first
/// does not depend on who is faster. Rank 1 runs the answer.
pub fn prefetch(answer: fn(&ProcessGroup, usize, i64, Compute<'_>) -> Result<Vec<f64>>) -> Task {
    /// How many looks to wait for the next batch: a second, and more on a busy machine, where the sender needs longer, too. Without a
    /// receive in progress, it never arrives. The sender waits as long for a computation, which an answer that receives first begins later.
    const LOOKS: usize = 450;
    /// More looks than pass between the end of a send and the end of its receive.
    const ARRIVAL: usize = 25;
    let key = |what: &str, number: usize| format!("prefetch/{what}/{number}");
    Task::in_group("prefetch", move |group, batches: Vec<Vec<f64>>| {
        let mut seen = Prefetched::default();
        if group.rank().is_zero() {
            for (number, batch) in batches.iter().enumerate() {
                if number > 0 {
                    there_within(group.store(), &key("begun", number - 1), LOOKS);
                }
                group.send(&tensor(batch), Rank::new(1), 0)?;
                group.store().set(&key("sent", number), "")?;
            }
            return Ok(seen);
        }
        let (mut changed, mut overlapped) = (Vec::new(), Vec::new());
        let (mut arrived, mut coming) = (Vec::new(), Vec::new());
        group.record_calls();
        let mut compute = |batch: &Tensor| {
            // Memory that nothing has arrived in is NaN, which equals nothing, not even itself.
            let bits =
                |batch: &Tensor| numbers(batch).map(|all| all.into_iter().map(f64::to_bits).collect::<Vec<_>>()).ok();
            let at_first = bits(batch);
            let next = overlapped.len() + 1;
            let _ = group.store().set(&key("begun", next - 1), ""); // after an error the sender goes on all the same, later
            let receives: Vec<bool> = group.called().iter().map(|called| called.waited).collect();
            arrived.push(receives.iter().filter(|waited| **waited).count());
            coming.push(receives.len() - arrived.last().unwrap_or(&0));
            overlapped.push(
                receives.contains(&false)
                    && next < batches.len()
                    && there_within(group.store(), &key("sent", next), LOOKS),
            );
            (0..ARRIVAL).for_each(|_| sleep(LOOK));
            changed.push(at_first != bits(batch));
            batch.sum(Kind::Double).double_value(&[])
        };
        let length = batches.first().map_or(0, Vec::len);
        seen.results = answer(group, batches.len(), i64::try_from(length)?, &mut compute)?;
        seen.started = group.called().len();
        (seen.changed, seen.overlapped, seen.arrived, seen.coming) = (changed, overlapped, arrived, coming);
        Ok(seen)
    })
}

/// The behaviour of the peer.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Peer {
    /// It sends at once.
    Sends,
    /// It sends nothing until the answer has given up.
    IsLate,
    /// It closes its connections.
    Leaves,
    /// There is no peer: the answer must receive from its own rank, which is impossible.
    Itself,
}

/// The result of `deadline`.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    Message(Vec<f64>),
    Late,
    Gone,
    Error(String),
}

/// Inputs: the peer's behaviour, the numbers that it sends, the deadline in milliseconds. The peer is rank 1, and rank 0 runs
/// the answer. Results: its outcome, its calls, and how long it took in milliseconds, by the clock and on its own. Gloo closes a group in
/// which a deadline has passed, so each case uses a new group.
pub fn deadline(answer: fn(&ProcessGroup, Rank, i64, Duration) -> Result<Received>) -> Task {
    let (patient, peer) = (Rank::ZERO, Rank::new(1));
    Task::in_group("deadline", move |all, (does, values, patience_ms): (Peer, Vec<f64>, u64)| {
        let group = all.new_group(&[patient, peer], &Default::default())?.context("both ranks are members")?;
        let key = |what: &str| format!("deadline/{}/{what}", group.name());
        let (left, decided) = (key("left"), key("decided"));
        // Neither a deadline nor a connection may end while the other rank still connects.
        let connected = [0, 1].map(|rank| key(&format!("connected/{rank}")));
        all.store().set(&connected[all.rank().get()], "")?;
        all.store().wait(&[&connected[0], &connected[1]], SILENCE)?;
        if all.rank() == peer {
            act(all.store(), group, does, &tensor(&values), &left, &decided)?;
            return Ok(None);
        }
        if let Peer::Leaves = does {
            all.store().wait(&[&left], SILENCE)?;
        }
        group.record_calls();
        let from = if matches!(does, Peer::Itself) { patient } else { peer };
        let length = i64::try_from(values.len())?;
        let patience = Duration::from_millis(patience_ms);
        let (received, took) = timed(patience, || answer(&group, from, length, patience));
        let calls: Vec<_> = group.called().into_iter().map(|called| (called.call.operation, called.waited)).collect();
        all.store().set(&decided, "")?;
        let outcome = match received {
            Ok(Received::Message(message)) => Outcome::Message(numbers(&message)?),
            Ok(Received::Late) => Outcome::Late,
            Ok(Received::Gone) => Outcome::Gone,
            Err(error) if matches!(does, Peer::Itself) => Outcome::Error(format!("{error:#}")),
            Err(error) => return Err(error),
        };
        Ok(Some((outcome, calls, [took.clock, took.own].map(|time| time.as_millis() as u64))))
    })
}

/// Longer than the grader waits for ranks that hang.
const SILENCE: Duration = Duration::from_secs(600);

fn act(store: &Store, group: ProcessGroup, does: Peer, message: &Tensor, left: &str, decided: &str) -> Result<()> {
    match does {
        // If the answer does not receive it, that is rank 0's outcome.
        Peer::Sends => drop(group.send(message, Rank::ZERO, 0)),
        // An answer that never gives up hangs, and so does this rank.
        Peer::IsLate | Peer::Itself => store.wait(&[decided], SILENCE)?,
        Peer::Leaves => {
            drop(group);
            store.set(left, "")?;
        }
    }
    Ok(())
}

/// The time between two looks. A busy machine makes each longer, so that looks measure what others can do meanwhile.
const LOOK: Duration = Duration::from_millis(2);

/// Returns true if a rank sets the key within this many looks.
fn there_within(store: &Store, key: &str, looks: usize) -> bool {
    (0..looks).any(|_| {
        let there = store.check(&[key]).unwrap_or(false);
        if !there {
            sleep(LOOK);
        }
        there
    })
}
