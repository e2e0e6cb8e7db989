//! Task 3: a program that starts its own processes. Spot the bug.
//!
//! The program starts the workers of a job, each with its rank, and waits for all of them, as `spawn` does in lab 02. The user starts it
//! like any other program, without a launcher. If a launcher has started it, it must return an error before it asks for any worker, even if
//! the launcher starts only one process. All launchers set `RANK` and `WORLD_SIZE`, and one of the two is enough to look at. Not all of
//! them set torchrun's own variables, and an address alone may come from the user.

use std::process::Child;

use anyhow::{Result, bail, ensure};

use crate::simulated::{Variables, worker};

/// Starts `nprocs` workers and waits for them. `variables` is the program's own environment.
///
/// # Errors
/// When it must not start workers, with the reason; when a worker fails.
pub fn nested(nprocs: usize, variables: &Variables) -> Result<()> {
    // <answer>
    //~ println!("starting {nprocs} workers");
    if let Some(rank) = variables.get("RANK") {
        bail!(
            "this program starts its own processes, but a launcher has started it (RANK is {rank}): start it without one"
        );
    }
    // </answer>
    let start = |rank| worker(rank, nprocs).spawn();
    let mut workers: Vec<Child> = (0..nprocs).map(start).collect::<Result<_, _>>()?;
    for worker in &mut workers {
        let status = worker.wait()?;
        ensure!(status.success(), "a worker ended with {status}");
    }
    Ok(())
}
