//! All answers of the course: its own, wrong ones that must get their diagnosis, and unusual right ones that must pass.

mod deadline;
mod exchange;
mod prefetch;
mod ring;

#[path = "../../given/tasks.rs"]
mod tasks;

#[allow(clippy::all)] // wrong answers break its rules on purpose
#[path = "../../mutants"]
mod mutants {
    pub mod deadline;
    pub mod exchange;
    pub mod prefetch;
    pub mod ring;
}

// Compiled in `lockstep-labs`. Listed here so that the formatter finds the files.
#[cfg(any())]
#[path = "../../grading"]
mod grading {
    mod deadline;
    mod exchange;
    mod prefetch;
    mod ring;
    mod waits;
}

lockstep_answers::main!();
