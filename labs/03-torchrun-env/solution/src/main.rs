//! All answers that the course keeps: its own, wrong ones that must get their diagnosis, unusual right ones that must pass.

mod cuda;
mod device;
mod environment;
mod fleet;
mod nested;
mod tasks;
mod variables;
mod visible;

#[allow(clippy::all)] // wrong answers are wrong in many ways
#[path = "../../mutants"]
mod mutants {
    pub mod device;
    pub mod environment;
    pub mod nested;
    pub mod visible;
}

lockstep_answers::main!();
