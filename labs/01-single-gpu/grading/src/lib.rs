//! How the tasks of lab 01 are graded.

mod batches;
mod checkpoints;
mod learns;
mod mean_loss;

use lockstep_grading::Lab;

/// Lab 01.
pub const LAB: Lab = Lab {
    name: "01-single-gpu",
    tasks: include_str!("../../tasks.toml"),
    gradings: &[
        ("batches", batches::grade),
        ("mean_loss", mean_loss::grade),
        ("checkpoints", checkpoints::grade),
        ("learns", learns::grade),
    ],
};

#[cfg(test)]
mod tests {
    #[test]
    fn the_tasks_and_their_gradings_belong_together() {
        super::LAB.tasks().unwrap();
    }
}
