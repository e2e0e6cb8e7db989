//! Right, if slower: rank 0 alone receives first, and the circle opens there.

use anyhow::Result;
use c10d::{ProcessGroup, Rank};
use tch::Tensor;

pub fn ring(group: &ProcessGroup, own: &Tensor) -> Result<Vec<Tensor>> {
    let (me, size) = (group.rank().get(), group.size().get());
    let (next, previous) = (Rank::new((me + 1) % size), Rank::new((me + size - 1) % size));
    let mut around = vec![own.copy()];
    for step in 1..size {
        let mut arrives = own.zeros_like();
        if me == 0 {
            group.recv(&mut arrives, previous, 0)?;
            group.send(&around[step - 1], next, 0)?;
        } else {
            group.send(&around[step - 1], next, 0)?;
            group.recv(&mut arrives, previous, 0)?;
        }
        around.push(arrives);
    }
    // What came in step s is of the rank that is s before this one.
    Ok((0..size).map(|of| around[(me + size - of) % size].shallow_clone()).collect())
}
