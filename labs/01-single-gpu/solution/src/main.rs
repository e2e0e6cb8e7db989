//! All answers that the course keeps: its own, wrong ones that must get their diagnosis, unusual right ones that must pass.

mod batches;
mod checkpoints;
mod learns;
mod mean_loss;
mod tasks;

#[allow(clippy::all)] // wrong answers are wrong in many ways
#[path = "../../mutants"]
mod mutants {
    pub mod batches;
    pub mod checkpoints;
    pub mod learns;
    pub mod mean_loss;
}

lockstep_answers::main!();
