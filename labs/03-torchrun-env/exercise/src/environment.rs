//! Task 1: who am I?
//!
//! A launcher tells each process its place in six variables, whose names torchrun made common: `RANK`, `LOCAL_RANK`,
//! `WORLD_SIZE`, `LOCAL_WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`. A process that guesses what it was not told trains alone,
//! on all of the data, beside others that do the same.

use std::str::FromStr;

use anyhow::{Context, Result, ensure};

use crate::variables::Variables;

/// A process's place in its job.
#[derive(Clone, Debug, PartialEq)]
pub struct Worker {
    /// Among all processes.
    pub rank: usize,
    /// Among the processes of its node.
    pub local_rank: usize,
    /// All processes.
    pub world_size: usize,
    /// The processes of its node.
    pub local_world_size: usize,
    /// Where the store is.
    pub master_addr: String,
    /// Its port.
    pub master_port: u16,
}

/// Reads a process's place.
///
/// # Errors
/// A variable that is not set, or is no number that it may be: the text names it. A rank that is not below the world size.
pub fn environment(variables: &Variables) -> Result<Worker> {
    // `variables.get("RANK")` is `Some("3")` or `None`. `.with_context(|| format!("…"))?`, on an `Option` or a `Result`,
    // returns an error with that text; `ensure!(condition, "…")` does so if the condition does not hold.
    todo!("read the six variables")
}
