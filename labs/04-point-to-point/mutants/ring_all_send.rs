//! All ranks send first: a full circle of ranks that wait for a receive.

use anyhow::Result;
use c10d::{ProcessGroup, Rank};
use tch::Tensor;

pub fn ring(group: &ProcessGroup, own: &Tensor) -> Result<Vec<Tensor>> {
    let (me, size) = (group.rank().get(), group.size().get());
    let (next, previous) = (Rank::new((me + 1) % size), Rank::new((me + size - 1) % size));
    let mut all: Vec<Tensor> = (0..size).map(|_| own.zeros_like()).collect();
    all[me].copy_(own);
    for step in 1..size {
        group.send(&all[(me + size + 1 - step) % size], next, 0)?;
        group.recv(&mut all[(me + size - step) % size], previous, 0)?;
    }
    Ok(all)
}
