//! All answers of the course: its own, wrong ones that must get their diagnosis, and unusual right ones that must pass.

mod average;
mod distributed;
mod epochs;
mod line;
mod prepare;
mod shard;

#[path = "../../given/download.rs"]
mod download;
#[path = "../../given/job.rs"]
mod job;
#[path = "../../given/tasks.rs"]
mod tasks;

#[allow(clippy::all)] // wrong answers break its rules on purpose
#[path = "../../mutants"]
mod mutants {
    pub mod average;
    pub mod distributed;
    pub mod epochs;
    pub mod line;
    pub mod prepare;
    pub mod shard;
}

// Compiled in `lockstep-labs`. Listed here so that the formatter finds the files.
#[cfg(any())]
#[path = "../../grading"]
mod grading {
    mod average;
    mod distributed;
    mod epochs;
    mod line;
    mod prepare;
    mod shard;
}

lockstep_answers::main!();
