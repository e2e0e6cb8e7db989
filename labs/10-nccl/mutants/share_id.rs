//! Answers to `share_id`: wrong ones, and an unusual right one.

use anyhow::{Context, Result};
use c10d::Store;
use lockstep_gpu::UniqueId;

fn parsed(bytes: &[u8]) -> Result<UniqueId> {
    UniqueId::from_bytes(bytes).context("the store's value is no unique id")
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

/// Sends the bytes up to the first zero, as if they were a string of C's.
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

/// Right: each rank makes an id, and the first in the store counts.
pub fn first_counts(store: &Store, _: usize, number: usize) -> Result<UniqueId> {
    let id = UniqueId::new()?;
    parsed(&store.compare_set(&format!("id {number}"), "", id.bytes())?)
}
