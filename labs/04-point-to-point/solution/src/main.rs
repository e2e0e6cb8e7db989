//! All answers that the course keeps: its own, wrong ones that must get their diagnosis, unusual right ones that must pass.

mod deadline;
mod exchange;
mod prefetch;
mod ring;
mod tasks;

#[allow(clippy::all)] // wrong answers are wrong in many ways
#[path = "../../mutants"]
mod mutants {
    pub mod deadline;
    pub mod exchange;
    pub mod prefetch;
    pub mod ring;
}

lockstep_answers::main!();
