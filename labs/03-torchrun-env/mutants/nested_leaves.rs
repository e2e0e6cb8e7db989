//! Starts workers and does not wait for them.

use crate::fleet::worker;
use crate::variables::Variables;

pub fn nested(nprocs: usize, variables: &Variables) -> anyhow::Result<()> {
    anyhow::ensure!(variables.get("RANK").is_none(), "started by a launcher");
    for rank in 0..nprocs {
        worker(rank, nprocs).spawn()?;
    }
    Ok(())
}
