//! Answers to `requeue`: wrong ones, and an unusual right one.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};
use lockstep_answers::edit;

use crate::requeue::Part;

/// The positions of the snapshots that are complete in these parts, newest last.
fn complete<'a>(parts: impl Iterator<Item = &'a Part>) -> Vec<(u64, u64)> {
    let mut found: BTreeMap<(u64, u64), (usize, BTreeSet<usize>)> = BTreeMap::new();
    for one in parts {
        let (of, there) = found.entry((one.epoch, one.step)).or_default();
        *of = one.of;
        there.insert(one.part);
    }
    found.into_iter().filter(|(_, (of, there))| there.len() == *of).map(|(at, _)| at).collect()
}

fn or_refuse(newest: Option<(u64, u64)>, disks: &[Vec<Part>]) -> Result<Option<(u64, u64)>> {
    if newest.is_none() && disks.iter().any(|disk| !disk.is_empty()) {
        bail!("no snapshot is complete");
    }
    Ok(newest)
}

/// Takes the newest position that any node has.
pub fn newest(disks: &[Vec<Part>]) -> Result<Option<(u64, u64)>> {
    Ok(disks.iter().flatten().map(|one| (one.epoch, one.step)).max())
}

/// Does not check whether the parts are whole.
pub fn torn(disks: &[Vec<Part>]) -> Result<Option<(u64, u64)>> {
    or_refuse(complete(disks.iter().flatten()).pop(), disks)
}

/// Starts over if no snapshot is complete.
pub fn starts_over(disks: &[Vec<Part>]) -> Result<Option<(u64, u64)>> {
    Ok(complete(disks.iter().flatten().filter(|one| one.whole)).pop())
}

/// Looks only at the first node's disk.
pub fn first_node(disks: &[Vec<Part>]) -> Result<Option<(u64, u64)>> {
    or_refuse(complete(disks[0].iter().filter(|one| one.whole)).pop(), disks)
}

/// Counts the parts that all nodes see, even if several see the same one.
pub fn counts(disks: &[Vec<Part>]) -> Result<Option<(u64, u64)>> {
    let all: Vec<&Part> = disks.iter().flatten().filter(|one| one.whole).collect();
    let count = |at: (u64, u64)| all.iter().filter(|one| (one.epoch, one.step) == at).count();
    let found = all.iter().filter(|one| count((one.epoch, one.step)) >= one.of).map(|one| (one.epoch, one.step)).max();
    or_refuse(found, disks)
}

/// Refuses if the newest is not complete, although one before it is.
pub fn refuses(disks: &[Vec<Part>]) -> Result<Option<(u64, u64)>> {
    let any = disks.iter().flatten().map(|one| (one.epoch, one.step)).max();
    let whole = complete(disks.iter().flatten().filter(|one| one.whole)).pop();
    if any != whole {
        bail!("the newest snapshot is not complete");
    }
    Ok(whole)
}

/// Rejects a snapshot if any copy of a part is torn.
pub fn any_torn(disks: &[Vec<Part>]) -> Result<Option<(u64, u64)>> {
    let all = || disks.iter().flatten();
    let torn = |one: &&Part| all().any(|other| !other.whole && (other.epoch, other.step) == (one.epoch, one.step));
    or_refuse(complete(all().filter(|one| !torn(one))).pop(), disks)
}

/// Treats disks that have only torn parts as empty.
pub fn torn_is_nothing(disks: &[Vec<Part>]) -> Result<Option<(u64, u64)>> {
    let whole: Vec<Vec<Part>> =
        disks.iter().map(|disk| disk.iter().filter(|one| one.whole).cloned().collect()).collect();
    from_the_newest(&whole)
}

/// Combines parts of one position even if they belong to different snapshots.
pub fn mixed(disks: &[Vec<Part>]) -> Result<Option<(u64, u64)>> {
    or_refuse(complete(disks.iter().flatten().filter(|one| one.whole)).pop(), disks)
}

/// Treats a snapshot as complete if the first part and the last are there.
pub fn last_part(disks: &[Vec<Part>]) -> Result<Option<(u64, u64)>> {
    let all: Vec<&Part> = disks.iter().flatten().filter(|one| one.whole).collect();
    let has = |of: &Part, part| {
        all.iter().any(|one| (one.epoch, one.step, one.of, one.part) == (of.epoch, of.step, of.of, part))
    };
    let complete = all.iter().filter(|one| has(one, 0) && has(one, one.of - 1));
    or_refuse(complete.map(|one| (one.epoch, one.step)).max(), disks)
}

/// Compares steps before epochs.
pub fn steps_first(disks: &[Vec<Part>]) -> Result<Option<(u64, u64)>> {
    let turned = |one: &Part| Part { epoch: one.step, step: one.epoch, ..one.clone() };
    let turned: Vec<Vec<Part>> = disks.iter().map(|disk| disk.iter().map(turned).collect()).collect();
    Ok(from_the_newest(&turned)?.map(|(step, epoch)| (epoch, step)))
}

/// Takes the oldest.
#[edit(.max() => .min())]
pub fn oldest() {}

/// Looks for each part on the node of its number.
#[edit(all.contains(&&part) => disks.get(part.part).is_some_and(|disk| disk.contains(&part)))]
pub fn by_number() {}

/// Right: removes incomplete snapshots, from the newest back.
pub fn from_the_newest(disks: &[Vec<Part>]) -> Result<Option<(u64, u64)>> {
    let mut there = BTreeMap::new();
    for one in disks.iter().flatten() {
        let parts = there.entry((one.epoch, one.step, one.of)).or_insert_with(|| vec![false; one.of]);
        parts[one.part] |= one.whole;
    }
    let empty = there.is_empty();
    while let Some(((epoch, step, _), parts)) = there.pop_last() {
        if parts.into_iter().all(|whole| whole) {
            return Ok(Some((epoch, step)));
        }
    }
    if empty { Ok(None) } else { bail!("no complete snapshot") }
}
