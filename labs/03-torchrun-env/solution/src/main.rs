//! All answers of the course: its own, wrong ones that must get their diagnosis, and unusual right ones that must pass.

mod device;
mod environment;
mod nested;
mod visible;

#[path = "../../given/cuda.rs"]
mod cuda;
#[path = "../../given/fleet.rs"]
mod fleet;
#[path = "../../given/tasks.rs"]
mod tasks;
#[path = "../../given/variables.rs"]
mod variables;

#[allow(clippy::all)] // wrong answers break its rules on purpose
#[path = "../../mutants"]
mod mutants {
    pub mod device;
    pub mod environment;
    pub mod nested;
    pub mod visible;
}

// So that the formatter finds it; it is compiled in `lockstep-labs`.
#[cfg(any())]
#[path = "../../grading/mod.rs"]
mod grading;

lockstep_answers::main!();
