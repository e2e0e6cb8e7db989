//! How the tasks of lab 07 are graded.

mod accuracy;
mod crop;
mod evaluation_shard;
mod learning_rate;
mod statistics;

use lockstep_grading::Lab;

/// Lab 07.
pub const LAB: Lab = Lab {
    name: "07-cifar-resnet",
    tasks: include_str!("../../tasks.toml"),
    gradings: &[
        ("crop", crop::grade),
        ("statistics", statistics::grade),
        ("learning_rate", learning_rate::grade),
        ("evaluation_shard", evaluation_shard::grade),
        ("accuracy", accuracy::grade),
    ],
};

#[cfg(test)]
mod tests {
    #[test]
    fn the_tasks_and_their_gradings_belong_together() {
        super::LAB.tasks().unwrap();
    }
}
