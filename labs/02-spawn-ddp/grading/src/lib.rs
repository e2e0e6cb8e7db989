//! How the tasks of lab 02 are graded.

mod average;
mod epochs;
mod line;
mod prepare;
mod shard;

use lockstep_grading::Lab;

/// Lab 02.
pub const LAB: Lab = Lab {
    name: "02-spawn-ddp",
    tasks: include_str!("../../tasks.toml"),
    gradings: &[
        ("shard", shard::grade),
        ("average", average::grade),
        ("epochs", epochs::grade),
        ("line", line::grade),
        ("prepare", prepare::grade),
    ],
};

#[cfg(test)]
mod tests {
    #[test]
    fn the_tasks_and_their_gradings_belong_together() {
        super::LAB.tasks().unwrap();
    }
}
