//! How the tasks of lab 08 are graded.

mod best;
mod freeze;
mod plateau;
mod smoothing;
mod two_files;

use lockstep_grading::Lab;

/// Lab 08.
pub const LAB: Lab = Lab {
    name: "08-image-folder",
    tasks: include_str!("../../tasks.toml"),
    gradings: &[
        ("freeze", freeze::grade),
        ("smoothing", smoothing::grade),
        ("plateau", plateau::grade),
        ("best", best::grade),
        ("two_files", two_files::grade),
    ],
};

#[cfg(test)]
mod tests {
    #[test]
    fn the_tasks_and_their_gradings_belong_together() {
        super::LAB.tasks().unwrap();
    }
}
