//! Starts its workers, whoever has started it.

use std::process::Child;

use crate::fleet::worker;
use crate::variables::Variables;

pub fn nested(nprocs: usize, _: &Variables) -> anyhow::Result<()> {
    let mut workers: Vec<Child> = (0..nprocs).map(|rank| worker(rank, nprocs).spawn()).collect::<Result<_, _>>()?;
    for worker in &mut workers {
        worker.wait()?;
    }
    Ok(())
}
