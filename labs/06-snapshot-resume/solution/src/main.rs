//! All answers of the course: its own, wrong ones that must get their diagnosis, and unusual right ones that must pass.

mod newest;
mod next_step;
mod order;
mod reshard;
mod state;
mod whole;

#[path = "../../given/disk.rs"]
mod disk;
#[path = "../../given/files.rs"]
mod files;
#[path = "../../given/job.rs"]
mod job;
#[path = "../../given/ranks.rs"]
mod ranks;
#[path = "../../given/tasks.rs"]
mod tasks;

#[allow(clippy::all)] // wrong answers break its rules on purpose
#[path = "../../mutants"]
mod mutants {
    pub mod newest;
    pub mod next_step;
    pub mod order;
    pub mod reshard;
    pub mod state;
    pub mod whole;
}

// Compiled in `lockstep-labs`. Listed here so that the formatter finds the files.
#[cfg(any())]
#[path = "../../grading"]
mod grading {
    mod newest;
    mod next_step;
    mod order;
    mod reshard;
    mod state;
    mod whole;
}

lockstep_answers::main!();
