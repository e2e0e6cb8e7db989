//! How the tasks of lab 06 are graded.

mod newest;
mod next_step;
mod order;
mod state;
mod whole;

use lockstep_grading::Lab;

/// Lab 06.
pub const LAB: Lab = Lab {
    name: "06-snapshot-resume",
    tasks: include_str!("../../tasks.toml"),
    gradings: &[
        ("next_step", next_step::grade),
        ("state", state::grade),
        ("order", order::grade),
        ("whole", whole::grade),
        ("newest", newest::grade),
    ],
};

#[cfg(test)]
mod tests {
    #[test]
    fn the_tasks_and_their_gradings_belong_together() {
        super::LAB.tasks().unwrap();
    }
}
