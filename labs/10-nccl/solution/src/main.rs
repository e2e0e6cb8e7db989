//! All answers of the course: its own, wrong ones that must get their diagnosis, and unusual right ones that must pass.

mod bus_bandwidth;
mod finish;
mod overlap;
mod place;
mod ring;
mod share_id;

#[path = "../../given/bandwidth.rs"]
mod bandwidth;
#[path = "../../given/job.rs"]
mod job;
#[path = "../../given/machine.rs"]
mod machine;
#[path = "../../given/pass.rs"]
mod pass;
#[path = "../../given/tasks.rs"]
mod tasks;

#[allow(clippy::all)] // wrong answers break its rules on purpose
#[path = "../../mutants"]
mod mutants {
    pub mod bus_bandwidth;
    pub mod finish;
    pub mod overlap;
    pub mod place;
    pub mod ring;
    pub mod share_id;
}

// Compiled in `lockstep-labs`. Listed here so that the formatter finds the files.
#[cfg(any())]
#[path = "../../grading"]
mod grading {
    mod bus_bandwidth;
    mod device;
    mod finish;
    mod overlap;
    mod place;
    mod ring;
    mod share_id;
}

lockstep_answers::main!();
