//! How the tasks of lab 05 are graded.

mod leaders;
mod mean;
mod ring_all_reduce;
mod same_order;
mod transpose;

use lockstep_grading::Lab;

/// Lab 05.
pub const LAB: Lab = Lab {
    name: "05-collectives",
    tasks: include_str!("../../tasks.toml"),
    gradings: &[
        ("mean", mean::grade),
        ("transpose", transpose::grade),
        ("same_order", same_order::grade),
        ("leaders", leaders::grade),
        ("ring_all_reduce", ring_all_reduce::grade),
    ],
};

#[cfg(test)]
mod tests {
    #[test]
    fn the_tasks_and_their_gradings_belong_together() {
        super::LAB.tasks().unwrap();
    }
}
