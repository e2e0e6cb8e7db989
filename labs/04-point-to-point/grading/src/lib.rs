//! How the tasks of lab 04 are graded.

mod deadline;
mod exchange;
mod prefetch;
mod ring;
mod waits;

use lockstep_grading::Lab;

/// Lab 04.
pub const LAB: Lab = Lab {
    name: "04-point-to-point",
    tasks: include_str!("../../tasks.toml"),
    gradings: &[
        ("ring", ring::grade),
        ("exchange", exchange::grade),
        ("prefetch", prefetch::grade),
        ("deadline", deadline::grade),
    ],
};

#[cfg(test)]
mod tests {
    #[test]
    fn the_tasks_and_their_gradings_belong_together() {
        super::LAB.tasks().unwrap();
    }
}
