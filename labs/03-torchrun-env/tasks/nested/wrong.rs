//! Answers to `nested`: wrong ones, and an unusual right one.

use std::process::Child;

use anyhow::{Result, bail, ensure};
use lockstep_answers::{edit, given};

use crate::simulated::{Variables, worker};

/// The given program: starts its workers even under a launcher.
#[given]
pub fn unaware() {}

/// Refuses only on ranks other than 0.
#[edit(variables.get("RANK") => variables.get("RANK").filter(|rank| *rank != "0"))]
pub fn rank_0() {}

/// Treats an address as the sign of a launcher.
#[edit(variables.get("RANK") => variables.get("MASTER_ADDR"))]
pub fn address() {}

/// Looks at the environment of its process, and not at `variables`.
#[edit(variables.get("RANK") => std::env::var("RANK").ok())]
pub fn own_environment() {}

/// Does nothing under a launcher and returns no error.
#[given]
#[edit(println!("starting {nprocs} workers"); => if variables.get("RANK").is_some() { return Ok(()); })]
pub fn quiet() {}

/// Starts workers and does not wait for them.
#[edit(for worker in &mut workers { let status = worker.wait()?; ensure!(status.success(), "a worker ended with {status}"); } => )]
pub fn leaves() {}

/// Waits for the workers, and does not look how they ended.
#[edit(ensure!(status.success(), "a worker ended with {status}"); => let _ = status;)]
pub fn ignores_failures() {}

/// Takes the end by a signal, which has no code, for code 0.
#[edit(status.success() => status.code().unwrap_or(0) == 0)]
pub fn codes_only() {}

/// Recognizes a launcher by a local rank.
#[edit(variables.get("RANK") => variables.get("LOCAL_RANK"))]
pub fn local_rank() {}

/// Recognizes torchrun by a variable that only torchrun sets.
#[edit(variables.get("RANK") => variables.get("TORCHELASTIC_RUN_ID"))]
pub fn torchrun_only() {}

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

/// Waits for each worker before it starts the next.
#[edit(.spawn() => .spawn().and_then(|mut started| started.wait().map(|_| started)))]
pub fn one_by_one() {}
