//! Answers to `visible`: wrong ones, and unusual right ones.

use anyhow::{Context, Result, ensure};
use lockstep_answers::{edit, given};

use crate::simulated::{CudaProcess, Gpu, VISIBLE};

/// The given program: counts the GPUs before it sets the variable.
#[given]
pub fn late() {}

/// Hides all other GPUs, then opens the GPU by its number on the machine.
#[edit(ensure!(process.device_count() == 1, "local rank {local_rank} has no GPU: there is no {own}"); => )]
#[edit(process.open(0) => process.open(local_rank))]
pub fn ordinal() {}

/// Opens the GPU whose number is the local rank, even if it belongs to another job.
pub fn overwrites(process: &mut CudaProcess, local_rank: usize) -> Result<Gpu> {
    process.set_variable(VISIBLE, &local_rank.to_string());
    process.open(0)
}

/// Opens the right GPU but hides none.
pub fn shows_all(process: &mut CudaProcess, local_rank: usize) -> Result<Gpu> {
    process.open(local_rank)
}

/// Right: lists the job's GPUs first and relies on CUDA to report that there is none for this rank.
pub fn collects(process: &mut CudaProcess, local_rank: usize) -> Result<Gpu> {
    let all = (0..64).map(|gpu| gpu.to_string()).collect::<Vec<_>>().join(",");
    let gpus: Vec<String> = process.variable(VISIBLE).unwrap_or(&all).split(',').map(str::to_owned).collect();
    process.set_variable(VISIBLE, gpus.get(local_rank).map_or("", String::as_str));
    process.open(0)
}

/// Reads the list as if all numbers had one digit: every second character is one.
#[edit(.split(',').nth(local_rank) => .chars().nth(2 * local_rank))]
#[edit(.to_owned() => .to_string())]
pub fn one_digit() {}

/// Hides the other GPUs and returns the number without opening anything.
#[edit(process.open(0) => Ok(Gpu(own.parse()?)))]
pub fn unopened() {}

/// Takes an empty list for none.
#[edit(process.variable(VISIBLE) => process.variable(VISIBLE).filter(|list| !list.is_empty()))]
pub fn empty_list() {}

/// Takes the list's numbers in their own order.
#[edit(list.split(',').nth(local_rank).context("the list is too short")?.to_owned() => {
    let mut gpus: Vec<usize> = list.split(',').map(|gpu| gpu.parse().unwrap_or(0)).collect();
    gpus.sort_unstable();
    gpus.get(local_rank).context("the list is too short")?.to_string()
})]
pub fn sorted() {}

/// Counts the GPUs where there is no list, and so initializes CUDA.
#[edit(local_rank.to_string() => {
    ensure!(local_rank < process.device_count(), "no GPU");
    local_rank.to_string()
})]
pub fn counts_without_list() {}

/// Panics if the list is too short.
#[edit(.context("the list is too short")? => .expect("too few GPUs"))]
pub fn panics() {}

/// Shares GPUs among processes if there are too few.
#[edit(.nth(local_rank) => .cycle().nth(local_rank))]
pub fn shares() {}

/// Puts its own GPU in front and hides none.
pub fn own_first(process: &mut CudaProcess, local_rank: usize) -> Result<Gpu> {
    let own = match process.variable(VISIBLE) {
        Some(list) => {
            let mut gpus: Vec<&str> = list.split(',').collect();
            ensure!(local_rank < gpus.len(), "the list is too short");
            gpus.swap(0, local_rank);
            gpus.join(",")
        }
        None => local_rank.to_string(),
    };
    process.set_variable(VISIBLE, &own);
    process.open(0)
}
