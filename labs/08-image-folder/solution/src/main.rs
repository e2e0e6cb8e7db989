//! All answers that the course keeps: its own, wrong ones that must get their diagnosis, unusual right ones that must pass.

mod best;
mod freeze;
mod job;
mod plateau;
mod smoothing;
mod tasks;
mod two_files;

#[allow(clippy::all)] // wrong answers are wrong in many ways
#[path = "../../mutants"]
mod mutants {
    pub mod best;
    pub mod freeze;
    pub mod plateau;
    pub mod smoothing;
    pub mod two_files;
}

lockstep_answers::main!();
