//! Deadlocks: ranks that wait for one another in a cycle. A deadline detects them; then the lab reports and fixes them.
//!
//! A group in which a deadline has passed is broken: Gloo closes its connections. So each attempt uses a separate group, and the
//! lab's group stays intact. These groups use Gloo even if the lab's group uses NCCL, which ends the process when a deadline
//! passes.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use c10d::{GroupOptions, ProcessGroup, Rank};
use tch::{Device, Kind, Tensor};

use crate::Lab;
use crate::messages::{last, next};

/// The size of a message that fits into any socket's buffer, and of one that fits into none, in bytes.
const SIZES: [i64; 2] = [4, 4 << 20];

/// How long ranks wait for one another to join an attempt's group, and in calls that cannot deadlock.
const MEETING: Duration = Duration::from_secs(60);

/// A failed wait of this rank: the error, and the rank that it waited for.
struct Stuck {
    error: c10d::Error,
    waited_for: Rank,
}

pub(crate) fn run(lab: &mut Lab) -> Result<()> {
    let group = attempt(lab)?;
    let stuck = all_receive_first(lab, &group)?;
    let mut cycles = vec![report(lab, "all receive first", &stuck)?];
    for bytes in SIZES {
        let group = attempt(lab)?;
        let stuck = all_send_first(lab, &group, bytes);
        cycles.push(report(lab, &format!("all send first, {bytes} bytes"), &stuck)?);
    }
    lab.results.note("deadlock-found", cycles)?;
    let held = one_after_the_other(&attempt(lab)?)?;
    lab.report
        .say(format!("deadlock: even ranks send first, odd ranks receive first: got {}", held.double_value(&[0])));
    let held = start_both(&attempt(lab)?)?;
    lab.report.say(format!("deadlock: start to send, then receive: got {}", held.double_value(&[0])));
    lab.results.note_tensor("deadlock", &held)
}

/// Runs only the first attempt and fails with its error.
pub(crate) fn stuck(lab: &mut Lab) -> Result<()> {
    let group = attempt(lab)?;
    match all_receive_first(lab, &group)? {
        Some(stuck) => {
            Err(stuck.error).context(format!("this rank waits for rank {}, which sends nothing", stuck.waited_for))
        }
        None => bail!("a message arrived that no rank had sent"),
    }
}

// ANCHOR: attempt
/// A new group for an attempt that may break it. Each group uses its own part of the store, because in a shared part the ranks
/// would find the addresses of dead connections.
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
    // `recv` is `irecv` and `wait`. This receive waits with a shorter deadline.
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
/// Even ranks send first, odd ranks receive first. In an odd number of ranks, the last and the first both send, which starts the
/// chain.
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
/// Each rank starts everything that others wait for before it waits.
fn start_both(group: &ProcessGroup) -> Result<Tensor> {
    let (next, last) = (next(group.rank(), group.size()), last(group.rank(), group.size()));
    let sending = group.isend(number(group.rank().get()), next, 0)?;
    let receiving = group.irecv(number(0), last, 0)?;
    drop(sending.wait()?);
    Ok(receiving.wait()?)
}
// ANCHOR_END: start

/// Prints this rank's error and, on rank 0, the cycle. Returns the cycle. All ranks learn over the lab's group which rank waited
/// for which.
///
/// # Errors
/// On all ranks, if there was no cycle: each attempt here must deadlock.
fn report(lab: &Lab, attempt: &str, stuck: &Option<Stuck>) -> Result<Vec<usize>> {
    match stuck {
        Some(stuck) => lab.report.say(format!("deadlock: {attempt}: {}", stuck.error)),
        None => lab.report.say(format!("deadlock: {attempt}: no deadlock here")),
    }
    let waits = gathered(&lab.group, stuck.as_ref().map(|stuck| stuck.waited_for))?;
    if lab.group.rank().is_zero() {
        lab.report.say(format!("deadlock: {attempt}: {}", verdict(&waits)));
    }
    cycle(&waits).with_context(|| format!("{attempt}: {}, but a deadlock was expected", verdict(&waits)))
}

/// The rank that each rank waited for, if any.
fn gathered(group: &ProcessGroup, waited_for: Option<Rank>) -> Result<Vec<Option<usize>>> {
    let number = |rank: i64| Tensor::from(rank).view([1]).to_device(group.device());
    let mut all: Vec<Tensor> = group.size().ranks().map(|_| number(0)).collect();
    group.all_gather(&mut all, &number(waited_for.map_or(-1, |rank| rank.get() as i64)))?;
    Ok(all.iter().map(|rank| usize::try_from(rank.int64_value(&[0])).ok()).collect())
}

fn verdict(waits: &[Option<usize>]) -> String {
    let Some(cycle) = cycle(waits) else { return "no ranks wait in a cycle".into() };
    let links: Vec<String> = cycle.iter().map(|rank| format!("waits for rank {rank}")).collect();
    format!("found a deadlock: rank {} {}", cycle[cycle.len() - 1], links.join(", which "))
}

// ANCHOR: cycle
/// Follows the waits from the first rank that is in a cycle back to itself.
fn cycle(waits: &[Option<usize>]) -> Option<Vec<usize>> {
    (0..waits.len()).find_map(|first| {
        let follow = |rank: &usize| waits.get(*rank).copied().flatten();
        let path: Vec<usize> = std::iter::successors(follow(&first), follow).take(waits.len()).collect();
        let back = path.iter().position(|&rank| rank == first)?;
        Some(path[..=back].to_vec())
    })
}
// ANCHOR_END: cycle

fn number(rank: usize) -> Tensor {
    Tensor::from_slice(&[rank as f32])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_the_waits_around_a_cycle() {
        assert_eq!(cycle(&[Some(1), Some(0)]), Some(vec![1, 0]));
        assert_eq!(cycle(&[Some(2), Some(0), Some(1)]), Some(vec![2, 1, 0]));
        assert_eq!(verdict(&[Some(1), Some(0)]), "found a deadlock: rank 0 waits for rank 1, which waits for rank 0");
    }

    #[test]
    fn rejects_chains_and_finds_cycles_of_some_ranks() {
        assert_eq!(cycle(&[Some(1), Some(2), None]), None);
        assert_eq!(cycle(&[None, None]), None);
        assert_eq!(cycle(&[Some(1), Some(2), Some(1)]), Some(vec![2, 1]));
        assert_eq!(verdict(&[Some(1), None]), "no ranks wait in a cycle");
    }
}
