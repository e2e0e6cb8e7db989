//! All answers of the course: its own, wrong ones that must get their diagnosis, and unusual right ones that must pass. Written by
//! `lockstep course skeleton`.

#[path = "batches/answer.rs"]
mod batches;
#[path = "checkpoints/answer.rs"]
mod checkpoints;
#[path = "learns/answer.rs"]
mod learns;
#[path = "mean_loss/answer.rs"]
mod mean_loss;

#[path = "../given/tasks.rs"]
mod tasks;

// Wrong answers break clippy's rules on purpose.
#[allow(clippy::all)]
#[path = "batches/wrong.rs"]
mod wrong_batches;
#[allow(clippy::all)]
#[path = "checkpoints/wrong.rs"]
mod wrong_checkpoints;
#[allow(clippy::all)]
#[path = "learns/wrong.rs"]
mod wrong_learns;
#[allow(clippy::all)]
#[path = "mean_loss/wrong.rs"]
mod wrong_mean_loss;

// Compiled in `lockstep-grading`. Listed here so that the formatter finds the files.
#[cfg(any())]
#[path = "."]
mod graders {
    #[path = "batches/grade.rs"]
    mod batches;
    #[path = "checkpoints/grade.rs"]
    mod checkpoints;
    #[path = "learns/grade.rs"]
    mod learns;
    #[path = "mean_loss/grade.rs"]
    mod mean_loss;
}

lockstep_answers::main!();
