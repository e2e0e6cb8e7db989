//! How the grader's inputs reach each task's function, and its results the grader. There is nothing to change here.

use std::collections::BTreeMap;

use anyhow::Result;
use lockstep::LaunchEnv;
use lockstep_exercise::Task;

use crate::cuda::{Gpu, Process};
use crate::device::Place;
use crate::environment::Worker;
use crate::fleet::watch;
use crate::variables::Variables;

/// Inputs: variables. Results: what was read, or the error's text.
pub fn environment(answer: fn(&Variables) -> Result<Worker>) -> Task {
    Task::new("environment", move |variables| {
        let read =
            |of: Worker| (of.rank, of.local_rank, of.world_size, of.local_world_size, of.master_addr, of.master_port);
        Ok(told(answer(&Variables(variables)).map(read)))
    })
}

/// Inputs: rank, local rank, world size, local world size, GPUs of the node.
pub fn device(answer: fn(&Worker, usize) -> Result<Place>) -> Task {
    Task::new("device", move |(rank, local_rank, world_size, local_world_size, gpus)| {
        let (master_addr, master_port) = ("node-0".to_owned(), 29500);
        let worker = Worker { rank, local_rank, world_size, local_world_size, master_addr, master_port };
        Ok(told(answer(&worker, gpus).map(|place| (place.group_rank, place.gpu, place.saves))))
    })
}

/// Inputs: how many workers to start; by rank, the variables that a launcher has set for this program. Results: the workers
/// that were started, the error's text.
pub fn nested(answer: fn(usize, &Variables) -> Result<()>) -> Task {
    Task::new("nested", move |(nprocs, by_rank): (usize, Vec<BTreeMap<String, String>>)| {
        let variables = Variables(by_rank[LaunchEnv::from_env()?.rank.get()].clone());
        let (started, ended) = watch(|| answer(nprocs, &variables));
        Ok((started, told(ended).err()))
    })
}

/// Inputs: GPUs of the machine, variables, local rank. Results: the GPU that was opened and how many are seen, or the
/// error's text.
pub fn visible(answer: fn(&mut Process, usize) -> Result<Gpu>) -> Task {
    Task::new("visible", move |(gpus, variables, local_rank)| {
        let mut process = Process::new(gpus, variables);
        let opened = answer(&mut process, local_rank);
        Ok(told(opened.map(|Gpu(gpu)| (gpu, process.device_count()))))
    })
}

/// With the error's text and that of its causes in place of the error.
fn told<T>(result: Result<T>) -> Result<T, String> {
    result.map_err(|error| format!("{error:#}"))
}
