//! All answers that the course keeps: its own, wrong ones that must get their diagnosis, unusual right ones that must pass.

mod disk;
mod files;
mod job;
mod newest;
mod next_step;
mod order;
mod state;
mod tasks;
mod whole;

#[allow(clippy::all)] // wrong answers are wrong in many ways
#[path = "../../mutants"]
mod mutants {
    pub mod newest;
    pub mod next_step;
    pub mod order;
    pub mod state;
    pub mod whole;
}

lockstep_answers::main!();
