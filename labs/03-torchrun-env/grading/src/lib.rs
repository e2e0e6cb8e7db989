//! How the tasks of lab 03 are graded.

mod device;
mod environment;
mod nested;
mod visible;

use lockstep_grading::Lab;

/// Lab 03.
pub const LAB: Lab = Lab {
    name: "03-torchrun-env",
    tasks: include_str!("../../tasks.toml"),
    gradings: &[
        ("environment", environment::grade),
        ("device", device::grade),
        ("nested", nested::grade),
        ("visible", visible::grade),
    ],
};

#[cfg(test)]
mod tests {
    #[test]
    fn the_tasks_and_their_gradings_belong_together() {
        super::LAB.tasks().unwrap();
    }
}
