//! Deadlocks: ranks that wait for one another in a circle. They are found by a deadline, told, and mended.
//!
//! A group in which a deadline has passed is broken: Gloo closes its connections. So each attempt has a group of its own, and the
//! lab's group stays whole. They are Gloo's also where the lab's is NCCL's, which ends the process when a deadline passes.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use c10d::{GroupOptions, ProcessGroup, Rank};
use tch::{Device, Kind, Tensor};

use crate::Lab;
use crate::ring::{last, next};

/// A message that fits into any socket's buffer, and one that fits into none, in bytes.
const SIZES: [i64; 2] = [4, 4 << 20];

/// How long ranks wait for one another to join an attempt's group, and in those of its calls that no deadlock can hold.
const MEETING: Duration = Duration::from_secs(60);

/// What happened to this rank: the error of the call in which it waited in vain, and for whom.
struct Stuck {
    error: c10d::Error,
    waited_for: Rank,
}

pub(crate) fn run(lab: &mut Lab) -> Result<()> {
    let group = attempt(lab)?;
    let stuck = all_receive_first(lab, &group)?;
    let mut circles = vec![tell(lab, "all receive first", &stuck)?];
    for bytes in SIZES {
        let group = attempt(lab)?;
        let stuck = all_send_first(lab, &group, bytes);
        circles.push(tell(lab, &format!("all send first, {bytes} bytes"), &stuck)?);
    }
    lab.results.note("deadlock-found", circles)?;
    let held = one_after_the_other(&attempt(lab)?)?;
    lab.report
        .say(format!("deadlock: even ranks send first, odd ranks receive first: got {}", held.double_value(&[0])));
    let held = start_both(&attempt(lab)?)?;
    lab.report.say(format!("deadlock: start to send, then receive: got {}", held.double_value(&[0])));
    lab.results.note_tensor("deadlock", &held)
}

/// The first attempt alone, and no way out.
pub(crate) fn stuck(lab: &mut Lab) -> Result<()> {
    let group = attempt(lab)?;
    match all_receive_first(lab, &group)? {
        Some(stuck) => {
            Err(stuck.error).context(format!("this rank waits for rank {}, which sends nothing", stuck.waited_for))
        }
        None => bail!("a message arrived that nobody had sent"),
    }
}

// ANCHOR: attempt
/// A new group for an attempt that may break it. It meets in a part of the store that is its own: where another group has met,
/// ranks would find the addresses of its dead connections.
fn attempt(lab: &mut Lab) -> Result<ProcessGroup> {
    lab.attempts += 1;
    let store = lab.group.store().prefix(&format!("deadlock-{}", lab.attempts))?;
    let options = GroupOptions { timeout: MEETING, ..GroupOptions::default() };
    let group = ProcessGroup::gloo(&store, lab.group.rank(), lab.group.size(), &options)?;
    group.barrier()?;
    Ok(group)
}
// ANCHOR_END: attempt

// ANCHOR: receive
/// Each rank waits for the one before it, and would then send to the one after it.
fn all_receive_first(lab: &Lab, group: &ProcessGroup) -> Result<Option<Stuck>> {
    let (next, last) = (next(group.rank(), group.size()), last(group.rank(), group.size()));
    // `recv` is `irecv` and `wait`; this waits with a deadline of its own.
    let received = group.irecv(number(0), last, 0).and_then(|work| work.wait_for(lab.args.patience));
    match received {
        Ok(_) => group.send(&number(group.rank().get()), next, 0).map(|()| None).map_err(Into::into),
        Err(error) => Ok(Some(Stuck { error, waited_for: last })),
    }
}
// ANCHOR_END: receive

// ANCHOR: send
/// Each rank sends to the one after it before it receives from the one before it.
fn all_send_first(lab: &Lab, group: &ProcessGroup, bytes: i64) -> Option<Stuck> {
    let (next, last) = (next(group.rank(), group.size()), last(group.rank(), group.size()));
    let message = || Tensor::zeros([bytes / 4], (Kind::Float, Device::Cpu));
    let sent = group.isend(message(), next, 0).and_then(|work| work.wait_for(lab.args.patience));
    if let Err(error) = sent {
        return Some(Stuck { error, waited_for: next });
    }
    let received = group.irecv(message(), last, 0).and_then(|work| work.wait_for(lab.args.patience));
    received.err().map(|error| Stuck { error, waited_for: last })
}
// ANCHOR_END: send

// ANCHOR: order
/// Neighbours differ in what they do first, but for the last and the first of an odd number: there the chain begins.
fn one_after_the_other(group: &ProcessGroup) -> Result<Tensor> {
    let (me, mut held) = (group.rank().get(), number(0));
    let (next, last) = (next(group.rank(), group.size()), last(group.rank(), group.size()));
    if me % 2 == 0 {
        group.send(&number(me), next, 0)?;
        group.recv(&mut held, last, 0)?;
    } else {
        group.recv(&mut held, last, 0)?;
        group.send(&number(me), next, 0)?;
    }
    Ok(held)
}
// ANCHOR_END: order

// ANCHOR: start
/// Nobody waits before everything that others wait for is under way.
fn start_both(group: &ProcessGroup) -> Result<Tensor> {
    let (next, last) = (next(group.rank(), group.size()), last(group.rank(), group.size()));
    let sending = group.isend(number(group.rank().get()), next, 0)?;
    let receiving = group.irecv(number(0), last, 0)?;
    drop(sending.wait()?);
    Ok(receiving.wait()?)
}
// ANCHOR_END: start

/// Tells this rank's error, and on rank 0 the circle, which it gives. All ranks learn over the lab's own group who waited for whom.
///
/// # Errors
/// On all ranks, if nobody waited in a circle: each attempt here must end in one.
fn tell(lab: &Lab, attempt: &str, stuck: &Option<Stuck>) -> Result<Vec<usize>> {
    match stuck {
        Some(stuck) => lab.report.say(format!("deadlock: {attempt}: {}", stuck.error)),
        None => lab.report.say(format!("deadlock: {attempt}: no deadlock here")),
    }
    let waits = gathered(&lab.group, stuck.as_ref().map(|stuck| stuck.waited_for))?;
    if lab.group.rank().is_zero() {
        lab.report.say(format!("deadlock: {attempt}: {}", verdict(&waits)));
    }
    circle(&waits).with_context(|| format!("{attempt}: {}, where a deadlock was due", verdict(&waits)))
}

/// For whom each rank waited, if it did.
fn gathered(group: &ProcessGroup, waited_for: Option<Rank>) -> Result<Vec<Option<usize>>> {
    let number = |rank: i64| Tensor::from(rank).view([1]).to_device(group.device());
    let mut all: Vec<Tensor> = group.size().ranks().map(|_| number(0)).collect();
    group.all_gather(&mut all, &number(waited_for.map_or(-1, |rank| rank.get() as i64)))?;
    Ok(all.iter().map(|rank| usize::try_from(rank.int64_value(&[0])).ok()).collect())
}

fn verdict(waits: &[Option<usize>]) -> String {
    let Some(circle) = circle(waits) else { return "nobody waits in a circle".into() };
    let links: Vec<String> = circle.iter().map(|rank| format!("waits for rank {rank}")).collect();
    format!("found a deadlock: rank {} {}", circle[circle.len() - 1], links.join(", which "))
}

// ANCHOR: circle
/// The ranks that are waited for, one after the other, from the first rank that is in a circle back to itself.
fn circle(waits: &[Option<usize>]) -> Option<Vec<usize>> {
    (0..waits.len()).find_map(|first| {
        let follow = |rank: &usize| waits.get(*rank).copied().flatten();
        let path: Vec<usize> = std::iter::successors(follow(&first), follow).take(waits.len()).collect();
        let back = path.iter().position(|&rank| rank == first)?;
        Some(path[..=back].to_vec())
    })
}
// ANCHOR_END: circle

/// A message.
fn number(rank: usize) -> Tensor {
    Tensor::from_slice(&[rank as f32])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_who_waits_for_whom_back_to_where_it_began() {
        assert_eq!(circle(&[Some(1), Some(0)]), Some(vec![1, 0]));
        assert_eq!(circle(&[Some(2), Some(0), Some(1)]), Some(vec![2, 1, 0]));
        assert_eq!(verdict(&[Some(1), Some(0)]), "found a deadlock: rank 0 waits for rank 1, which waits for rank 0");
    }

    #[test]
    fn a_chain_that_ends_is_no_circle_and_a_circle_need_not_hold_all() {
        assert_eq!(circle(&[Some(1), Some(2), None]), None);
        assert_eq!(circle(&[None, None]), None);
        assert_eq!(circle(&[Some(1), Some(2), Some(1)]), Some(vec![2, 1]));
        assert_eq!(verdict(&[Some(1), None]), "nobody waits in a circle");
    }
}
