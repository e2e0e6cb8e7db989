//! All answers of the course: its own, wrong ones that must get their diagnosis, and unusual right ones that must pass.

mod best;
mod freeze;
mod plateau;
mod smoothing;
mod two_files;

#[path = "../../given/job.rs"]
mod job;
#[path = "../../given/tasks.rs"]
mod tasks;

#[allow(clippy::all)] // wrong answers break its rules on purpose
#[path = "../../mutants"]
mod mutants {
    pub mod best;
    pub mod freeze;
    pub mod plateau;
    pub mod smoothing;
    pub mod two_files;
}

// Compiled in `lockstep-labs`. Listed here so that the formatter finds the files.
#[cfg(any())]
#[path = "../../grading"]
mod grading {
    mod best;
    mod freeze;
    mod plateau;
    mod smoothing;
    mod two_files;
}

lockstep_answers::main!();
