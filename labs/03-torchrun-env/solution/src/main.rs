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

// Compiled in `lockstep-labs`. Listed here so that the formatter finds the files.
#[cfg(any())]
#[path = "../../grading"]
mod grading {
    mod device;
    mod environment;
    mod nested;
    mod visible;
}

lockstep_answers::main!();
