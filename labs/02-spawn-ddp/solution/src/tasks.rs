//! How the grader's inputs reach each task's function, and its results the grader. There is nothing to change here.

use c10d::ProcessGroup;
use lockstep_exercise::{Task, numbers, tensor};
use tch::Tensor;

/// Inputs: samples, world size, rank.
pub fn shard(answer: fn(usize, usize, usize) -> Vec<usize>) -> Task {
    Task::new("shard", move |(samples, world_size, rank)| Ok(answer(samples, world_size, rank)))
}

/// Inputs: by rank, the values of its gradients.
pub fn average(answer: fn(&ProcessGroup, &mut [Tensor]) -> anyhow::Result<()>) -> Task {
    Task::in_group("average", move |group, by_rank: Vec<Vec<Vec<f64>>>| {
        let own = &by_rank[group.rank().get()];
        let mut gradients: Vec<Tensor> = own.iter().map(|values| tensor(values)).collect();
        answer(group, &mut gradients)?;
        gradients.iter().map(numbers).collect::<anyhow::Result<Vec<_>>>()
    })
}
