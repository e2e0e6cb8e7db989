//! Only ranks other than 0 refuse.

use std::process::Child;

use crate::fleet::worker;
use crate::variables::Variables;

pub fn nested(nprocs: usize, variables: &Variables) -> anyhow::Result<()> {
    if let Some(rank) = variables.get("RANK").filter(|rank| *rank != "0") {
        anyhow::bail!("started by a launcher, as rank {rank}");
    }
    let mut workers: Vec<Child> = (0..nprocs).map(|rank| worker(rank, nprocs).spawn()).collect::<Result<_, _>>()?;
    for worker in &mut workers {
        worker.wait()?;
    }
    Ok(())
}
