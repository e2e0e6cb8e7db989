//! Takes an address for a launcher's mark.

use std::process::Child;

use crate::fleet::worker;
use crate::variables::Variables;

pub fn nested(nprocs: usize, variables: &Variables) -> anyhow::Result<()> {
    anyhow::ensure!(variables.get("MASTER_ADDR").is_none(), "started by a launcher");
    let mut workers: Vec<Child> = (0..nprocs).map(|rank| worker(rank, nprocs).spawn()).collect::<Result<_, _>>()?;
    for worker in &mut workers {
        worker.wait()?;
    }
    Ok(())
}
