//! One tensor is both sent and received into: who receives first has lost what it was to send.

use anyhow::Result;
use c10d::{ProcessGroup, Rank};
use tch::Tensor;

pub fn ring(group: &ProcessGroup, own: &Tensor) -> Result<Vec<Tensor>> {
    let (me, size) = (group.rank().get(), group.size().get());
    let (next, previous) = (Rank::new((me + 1) % size), Rank::new((me + size - 1) % size));
    let mut all: Vec<Tensor> = (0..size).map(|_| own.copy()).collect();
    let mut held = own.copy();
    for step in 1..size {
        if me % 2 == 0 {
            group.send(&held, next, 0)?;
            group.recv(&mut held, previous, 0)?;
        } else {
            group.recv(&mut held, previous, 0)?;
            group.send(&held, next, 0)?;
        }
        all[(me + size - step) % size].copy_(&held);
    }
    Ok(all)
}
