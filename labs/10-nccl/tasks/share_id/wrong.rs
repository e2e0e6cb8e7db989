//! Answers to `share_id`: wrong ones, and an unusual right one.

use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};
use c10d::Store;
use lockstep_answers::edit;
use lockstep_gpu::UniqueId;

fn parsed(bytes: &[u8]) -> Result<UniqueId> {
    UniqueId::from_bytes(bytes).context("the store's value is not a unique id")
}

/// Makes an id on each rank.
pub fn each_its_own(_: &Store, _: usize, _: usize) -> Result<UniqueId> {
    Ok(UniqueId::new()?)
}

/// Uses one key for all communicators.
pub fn one_key(store: &Store, rank: usize, _: usize) -> Result<UniqueId> {
    if rank == 0 && !store.check(&["id"])? {
        store.set("id", UniqueId::new()?.bytes())?;
    }
    parsed(&store.get("id")?)
}

/// Uses one key for all communicators, and sets it for each.
pub fn newest_counts(store: &Store, rank: usize, _: usize) -> Result<UniqueId> {
    if rank == 0 {
        let id = UniqueId::new()?;
        store.set("id", id.bytes())?;
        return Ok(id);
    }
    parsed(&store.get("id")?)
}

/// Looks for a key with its own rank, which is never set.
#[edit("unique id {number}" => "unique id {number} of rank {rank}")]
pub fn own_key() {}

/// Sends the bytes up to the first zero, as if they were a C string.
pub fn as_text(store: &Store, rank: usize, number: usize) -> Result<UniqueId> {
    let key = format!("id {number}");
    if rank == 0 {
        let id = UniqueId::new()?;
        store.set(&key, id.bytes().split(|byte| *byte == 0).next().unwrap_or_default())?;
    }
    let mut bytes = store.get(&key)?;
    bytes.resize(UniqueId::BYTES, 0);
    parsed(&bytes)
}

/// Sends the first half of the bytes.
#[edit(UniqueId::new()?.bytes() => &UniqueId::new()?.bytes()[..UniqueId::BYTES / 2])]
#[edit(UniqueId::from_bytes(&store.get(&key)?) => UniqueId::from_bytes(&[store.get(&key)?, vec![1; UniqueId::BYTES / 2]].concat()))]
pub fn first_half() {}

/// Sends the bytes as UTF-8, which replaces invalid ones.
#[edit(UniqueId::new()?.bytes() => String::from_utf8_lossy(UniqueId::new()?.bytes()).as_bytes())]
pub fn as_utf8() {}

/// Sleeps for a time in which the other rank will have written the id.
#[edit(UniqueId::from_bytes =>
    std::thread::sleep(std::time::Duration::from_millis(100));
    anyhow::ensure!(store.check(&[&key])?, "rank 0 has written no id");
    UniqueId::from_bytes
)]
pub fn sleeps() {}

/// Tidies up: a rank that has read the id deletes the key.
pub fn reads_once(store: &Store, rank: usize, number: usize) -> Result<UniqueId> {
    let key = format!("id {number}");
    if rank == 0 {
        let id = UniqueId::new()?;
        store.set(&key, id.bytes())?;
        return Ok(id);
    }
    let id = store.get(&key)?;
    store.delete(&key)?;
    parsed(&id)
}

/// Numbers the keys by the calls, not by the communicators.
#[edit(let key = format!("unique id {number}") =>
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let key = format!("id {}", CALLS.fetch_add(1, Ordering::Relaxed))
)]
pub fn counts_calls() {}

/// Right: rank 1 makes it and keeps it, and the others read it.
pub fn rank_1_makes(store: &Store, rank: usize, number: usize) -> Result<UniqueId> {
    let own = store.prefix(&format!("communicator {number}"))?;
    if rank == 1 {
        let id = UniqueId::new()?;
        own.set("id", id.bytes())?;
        return Ok(id);
    }
    parsed(&own.get("id")?)
}

/// Right: each rank makes an id, and the first in the store counts.
pub fn first_counts(store: &Store, _: usize, number: usize) -> Result<UniqueId> {
    let id = UniqueId::new()?;
    parsed(&store.compare_set(&format!("id {number}"), "", id.bytes())?)
}
