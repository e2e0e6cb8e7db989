//! All answers that the course keeps: its own, wrong ones that must get their diagnosis, unusual right ones that must pass.

mod average;
mod download;
mod epochs;
mod line;
mod prepare;
mod shard;
mod tasks;

#[allow(clippy::all)] // wrong answers are wrong in many ways
#[path = "../../mutants"]
mod mutants {
    pub mod average;
    pub mod epochs;
    pub mod line;
    pub mod prepare;
    pub mod shard;
}

lockstep_answers::main!();
