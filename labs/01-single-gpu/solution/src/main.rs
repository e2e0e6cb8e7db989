//! All answers of the course: its own, wrong ones that must get their diagnosis, and unusual right ones that must pass.

mod batches;
mod checkpoints;
mod learns;
mod mean_loss;

#[path = "../../given/tasks.rs"]
mod tasks;

#[allow(clippy::all)] // wrong answers break its rules on purpose
#[path = "../../mutants"]
mod mutants {
    pub mod batches;
    pub mod checkpoints;
    pub mod learns;
    pub mod mean_loss;
}

// Compiled in `lockstep-labs`. Listed here so that the formatter finds the files.
#[cfg(any())]
#[path = "../../grading"]
mod grading {
    mod batches;
    mod checkpoints;
    mod learns;
    mod mean_loss;
}

lockstep_answers::main!();
