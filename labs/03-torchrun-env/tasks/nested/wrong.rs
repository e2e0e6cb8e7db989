//! Answers to `nested`: wrong ones, and an unusual right one.

use std::process::Child;

use anyhow::{Result, bail, ensure};
use lockstep_answers::edit;

use crate::simulated::{Variables, worker};

/// The given program: starts its workers even under a launcher.
pub fn unaware(nprocs: usize, _: &Variables) -> anyhow::Result<()> {
    let mut workers: Vec<Child> = (0..nprocs).map(|rank| worker(rank, nprocs).spawn()).collect::<Result<_, _>>()?;
    for worker in &mut workers {
        worker.wait()?;
    }
    Ok(())
}

/// Refuses only on ranks other than 0.
pub fn rank_0(nprocs: usize, variables: &Variables) -> anyhow::Result<()> {
    if let Some(rank) = variables.get("RANK").filter(|rank| *rank != "0") {
        anyhow::bail!("started by a launcher, as rank {rank}");
    }
    let mut workers: Vec<Child> = (0..nprocs).map(|rank| worker(rank, nprocs).spawn()).collect::<Result<_, _>>()?;
    for worker in &mut workers {
        worker.wait()?;
    }
    Ok(())
}

/// Treats an address as the sign of a launcher.
pub fn address(nprocs: usize, variables: &Variables) -> anyhow::Result<()> {
    anyhow::ensure!(variables.get("MASTER_ADDR").is_none(), "started by a launcher");
    let mut workers: Vec<Child> = (0..nprocs).map(|rank| worker(rank, nprocs).spawn()).collect::<Result<_, _>>()?;
    for worker in &mut workers {
        worker.wait()?;
    }
    Ok(())
}

/// Looks at the environment of its process, and not at `variables`.
pub fn own_environment(nprocs: usize, _: &Variables) -> anyhow::Result<()> {
    anyhow::ensure!(std::env::var_os("RANK").is_none(), "started by a launcher: RANK is set");
    let mut workers: Vec<Child> = (0..nprocs).map(|rank| worker(rank, nprocs).spawn()).collect::<Result<_, _>>()?;
    for worker in &mut workers {
        worker.wait()?;
    }
    Ok(())
}

/// Does nothing under a launcher and returns no error.
pub fn quiet(nprocs: usize, variables: &Variables) -> anyhow::Result<()> {
    if variables.get("RANK").is_some() {
        return Ok(());
    }
    let mut workers: Vec<Child> = (0..nprocs).map(|rank| worker(rank, nprocs).spawn()).collect::<Result<_, _>>()?;
    for worker in &mut workers {
        worker.wait()?;
    }
    Ok(())
}

/// Starts workers and does not wait for them.
pub fn leaves(nprocs: usize, variables: &Variables) -> anyhow::Result<()> {
    anyhow::ensure!(variables.get("RANK").is_none(), "started by a launcher");
    for rank in 0..nprocs {
        worker(rank, nprocs).spawn()?;
    }
    Ok(())
}

/// Recognizes torchrun by a variable that only torchrun sets.
pub fn torchrun_only(nprocs: usize, variables: &Variables) -> anyhow::Result<()> {
    anyhow::ensure!(
        variables.get("TORCHELASTIC_RUN_ID").is_none(),
        "torchrun has started this program: start it without a launcher"
    );
    let start = |rank| worker(rank, nprocs).spawn();
    let mut workers: Vec<Child> = (0..nprocs).map(start).collect::<Result<_, _>>()?;
    for worker in &mut workers {
        anyhow::ensure!(worker.wait()?.success(), "a worker failed");
    }
    Ok(())
}

/// Right: says which rank the process is already.
pub fn already(nprocs: usize, variables: &Variables) -> anyhow::Result<()> {
    if let (Some(rank), Some(size)) = (variables.get("RANK"), variables.get("WORLD_SIZE")) {
        anyhow::bail!("this is rank {rank} of {size} already");
    }
    let workers: Vec<Child> = (0..nprocs).map(|rank| worker(rank, nprocs).spawn()).collect::<Result<_, _>>()?;
    for worker in workers {
        let status = worker.wait_with_output()?.status;
        anyhow::ensure!(status.success(), "a worker ended with {status}");
    }
    Ok(())
}

/// Starts the workers, then looks for a launcher, and kills them.
#[edit(if let Some(rank) => if variables.get("RANK").is_some() {
    let mut started: Vec<Child> = (0..nprocs).map(|rank| worker(rank, nprocs).spawn()).collect::<Result<_, _>>()?;
    for worker in &mut started {
        worker.kill()?;
        worker.wait()?;
    }
} if let Some(rank))]
pub fn kills() {}

/// Treats a launcher with one process as none.
#[edit(variables.get("RANK") => variables.get("WORLD_SIZE").filter(|size| *size != "1"))]
pub fn more_than_one() {}

/// Right: looks at one variable, the world size.
#[edit(variables.get("RANK") => variables.get("WORLD_SIZE"))]
pub fn world_size() {}
