//! Passes the grader's inputs to each task's function and its results back. You do not change this file.

use std::collections::BTreeMap;

use anyhow::Result;
use lockstep::LaunchEnv;
use lockstep_exercise::Task;

use crate::device::Decisions;
use crate::environment::Worker;
use crate::simulated::{CudaProcess, Gpu, VISIBLE, Variables, watch};

/// Inputs: variables. Results: the values that were read, as texts, or the error's text.
pub fn environment(answer: fn(&Variables) -> Result<Worker>) -> Task {
    Task::new("environment", move |variables| {
        let read = |of: Worker| {
            let [rank, local_rank, world_size, local_world_size] =
                [of.rank, of.local_rank, of.world_size, of.local_world_size].map(|number| number.to_string());
            [rank, local_rank, world_size, local_world_size, of.master_addr, of.master_port.to_string()]
        };
        Ok(with_text(answer(&Variables(variables)).map(read)))
    })
}

/// Inputs: rank, local rank, world size, local world size, GPUs of the node.
pub fn device(answer: fn(&Worker, usize) -> Result<Decisions>) -> Task {
    Task::new("device", move |(rank, local_rank, world_size, local_world_size, gpus)| {
        let (master_addr, master_port) = ("node-0".to_owned(), 29500);
        let worker = Worker { rank, local_rank, world_size, local_world_size, master_addr, master_port };
        Ok(with_text(answer(&worker, gpus).map(|place| (place.group_rank, place.gpu, place.saves))))
    })
}

/// Inputs: the number of workers to start; for each rank, the variables that a launcher has set for this program; the worker that fails.
/// Results: the workers that were started, and the error's text.
pub fn nested(answer: fn(usize, &Variables) -> Result<()>) -> Task {
    Task::new("nested", move |(nprocs, by_rank, fails): (usize, Vec<BTreeMap<String, String>>, Option<usize>)| {
        let variables = Variables(by_rank[LaunchEnv::from_env()?.rank.get()].clone());
        let (started, ended) = watch(variables.get("RANK").is_some(), fails, || answer(nprocs, &variables));
        Ok((started, with_text(ended).err()))
    })
}

/// Inputs: GPUs of the machine, variables, local rank. Results: the returned GPU, or the error's text; the GPU that was opened; the value
/// of the variable then, and how many GPUs the process sees.
pub fn visible(answer: fn(&mut CudaProcess, usize) -> Result<Gpu>) -> Task {
    Task::new("visible", move |(gpus, variables, local_rank)| {
        let mut process = CudaProcess::new(gpus, variables);
        let returned = with_text(answer(&mut process, local_rank).map(|Gpu(gpu)| gpu));
        let variable = process.variable(VISIBLE).map(str::to_owned);
        Ok((returned, process.opened(), variable, process.device_count()))
    })
}

/// Converts an error to its text, including its causes.
fn with_text<T>(result: Result<T>) -> Result<T, String> {
    result.map_err(|error| format!("{error:#}"))
}
