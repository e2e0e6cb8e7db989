//! All answers of the course: its own, wrong ones that must get their diagnosis, and unusual right ones that must pass.

mod accuracy;
mod crop;
mod evaluation_shard;
mod learning_rate;
mod statistics;

#[path = "../../given/tasks.rs"]
mod tasks;

#[allow(clippy::all)] // wrong answers break its rules on purpose
#[path = "../../mutants"]
mod mutants {
    pub mod accuracy;
    pub mod crop;
    pub mod evaluation_shard;
    pub mod learning_rate;
    pub mod statistics;
}

// Compiled in `lockstep-labs`. Listed here so that the formatter finds the files.
#[cfg(any())]
#[path = "../../grading"]
mod grading {
    mod accuracy;
    mod crop;
    mod evaluation_shard;
    mod learning_rate;
    mod statistics;
}

lockstep_answers::main!();
