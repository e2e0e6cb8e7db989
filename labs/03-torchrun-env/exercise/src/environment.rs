//! Task 1: who am I?
//!
//! A launcher gives each process its place in six variables with torchrun's names: `RANK`, `LOCAL_RANK`, `WORLD_SIZE`,
//! `LOCAL_WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`. A process that guesses a missing value trains alone on all of the data,
//! next to others that do the same.

use std::str::FromStr;

use anyhow::{Context, Result, ensure};

use crate::simulated::Variables;

/// A process's place in its job.
#[derive(Clone, Debug, PartialEq)]
pub struct Worker {
    /// Its number among all processes of the job.
    pub rank: usize,
    /// Its number among the processes of its node.
    pub local_rank: usize,
    /// The number of processes in the job.
    pub world_size: usize,
    /// The number of processes on its node.
    pub local_world_size: usize,
    /// The host of the store.
    pub master_addr: String,
    /// The port of the store.
    pub master_port: u16,
}

/// Reads the place of a process from its variables.
///
/// # Errors
/// When a variable is not set or is not a valid number: the error says which one, by its name. When the rank is not below the world size:
/// you choose the text of this error.
pub fn environment(variables: &Variables) -> Result<Worker> {
    // `variables.get("RANK")` is `Some("3")` or `None`. `.with_context(|| format!("…"))?`, on an `Option` or a `Result`,
    // returns an error with that text; `ensure!(condition, "…")` returns one if the condition is false.
    todo!("read the six variables")
}
