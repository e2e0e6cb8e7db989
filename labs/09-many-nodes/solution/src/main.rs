//! All answers of the course: its own, wrong ones that must get their diagnosis, and unusual right ones that must pass.

mod batch_script;
mod diagnose;
mod head_node;
mod interface;
mod requeue;
mod unequal_nodes;

#[path = "../../given/disks.rs"]
mod disks;
#[path = "../../given/job.rs"]
mod job;
#[path = "../../given/network.rs"]
mod network;
#[path = "../../given/recordings.rs"]
mod recordings;
#[path = "../../given/site.rs"]
mod site;
#[path = "../../given/tasks.rs"]
mod tasks;

#[allow(clippy::all)] // wrong answers break its rules on purpose
#[path = "../../mutants"]
mod mutants {
    pub mod batch_script;
    pub mod diagnose;
    pub mod head_node;
    pub mod interface;
    pub mod requeue;
    pub mod unequal_nodes;
}

// Compiled in `lockstep-labs`. Listed here so that the formatter finds the files.
#[cfg(any())]
#[path = "../../grading"]
mod grading {
    mod batch_script;
    mod diagnose;
    mod head_node;
    mod interface;
    mod requeue;
    mod unequal_nodes;
}

lockstep_answers::main!();
