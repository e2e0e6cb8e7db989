//! All answers of the course: its own, wrong ones that must get their diagnosis, and unusual right ones that must pass.

mod leaders;
mod mean;
mod ring_all_reduce;
mod same_order;
mod transpose;

#[path = "../../given/ring.rs"]
mod ring;
#[path = "../../given/tasks.rs"]
mod tasks;

#[allow(clippy::all)] // wrong answers break its rules on purpose
#[path = "../../mutants"]
mod mutants {
    pub mod leaders;
    pub mod mean;
    pub mod ring_all_reduce;
    pub mod same_order;
    pub mod transpose;
}

// Compiled in `lockstep-labs`. Listed here so that the formatter finds the files.
#[cfg(any())]
#[path = "../../grading"]
mod grading {
    mod leaders;
    mod mean;
    mod ring_all_reduce;
    mod same_order;
    mod transpose;
}

lockstep_answers::main!();
