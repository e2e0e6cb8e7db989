//! Passes the grader's inputs to each task's function and its results back. You do not change this file.

use std::collections::BTreeMap;

use anyhow::Result;
use lockstep_exercise::Task;

use crate::head_node::SchedulerJob;
use crate::interface::Interface;
use crate::recordings::{Cause, RECORDINGS};
use crate::requeue::Part;
use crate::site;
use crate::unequal_nodes::Placement;

/// Inputs: variables and files. Results: host and port, or the error's text.
pub fn head_node(answer: fn(&SchedulerJob) -> Result<(String, u16)>) -> Task {
    Task::new("head_node", move |(variables, files)| Ok(with_text(answer(&SchedulerJob { variables, files }))))
}

/// Inputs: the workers of each node, a node, a local rank, samples. Results: rank, world size and positions, or the error's text.
pub fn unequal_nodes(answer: fn(&[usize], usize, usize, usize) -> Result<Placement>) -> Task {
    Task::new("unequal_nodes", move |(workers, node, local_rank, samples): (Vec<usize>, usize, usize, usize)| {
        let place = answer(&workers, node, local_rank, samples);
        Ok(with_text(place.map(|place| (place.rank, place.world_size, place.positions))))
    })
}

/// Inputs: the interfaces of each node. Results: their names, or the error's text.
pub fn interface(answer: fn(&[Vec<Interface>]) -> Result<Vec<String>>) -> Task {
    Task::new("interface", move |nodes: Vec<Vec<Interface>>| Ok(with_text(answer(&nodes))))
}

/// Inputs: hosts and the job's id. Results: what the script started, and its end.
pub fn batch_script(answer: fn() -> &'static str) -> Task {
    Task::new("batch_script", move |(hosts, id): (Vec<String>, String)| site::run(answer(), &hosts, &id))
}

/// Inputs: none. Results: the cause of each recording.
pub fn diagnose(answer: fn(&str) -> Cause) -> Task {
    Task::new("diagnose", move |()| {
        let causes = RECORDINGS.iter().map(|(name, _)| ((*name).to_owned(), format!("{:?}", answer(name))));
        Ok(causes.collect::<BTreeMap<String, String>>())
    })
}

/// Where training continues.
type Decision = Result<Option<(u64, u64)>>;

/// Inputs: what each node finds. Results: epoch and step, or the error's text.
pub fn requeue(answer: fn(&[Vec<Part>]) -> Decision) -> Task {
    Task::new("requeue", move |disks: Vec<Vec<Part>>| Ok(with_text(answer(&disks))))
}

/// Converts an error to its text, including its causes.
fn with_text<T>(result: Result<T>) -> Result<T, String> {
    result.map_err(|error| format!("{error:#}"))
}
