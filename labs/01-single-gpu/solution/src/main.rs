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

// So that the formatter finds it; it is compiled in `lockstep-labs`.
#[cfg(any())]
#[path = "../../grading/mod.rs"]
mod grading;

lockstep_answers::main!();
