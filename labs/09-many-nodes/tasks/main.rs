//! All answers of the course: its own, wrong ones that must get their diagnosis, and unusual right ones that must pass. Written by
//! `lockstep course skeleton`.

#[path = "batch_script/answer.rs"]
mod batch_script;
#[path = "diagnose/answer.rs"]
mod diagnose;
#[path = "head_node/answer.rs"]
mod head_node;
#[path = "interface/answer.rs"]
mod interface;
#[path = "requeue/answer.rs"]
mod requeue;
#[path = "unequal_nodes/answer.rs"]
mod unequal_nodes;

#[path = "../given/recordings.rs"]
mod recordings;
#[path = "../given/site.rs"]
mod site;
#[path = "../given/tasks.rs"]
mod tasks;

// Wrong answers break clippy's rules on purpose.
#[allow(clippy::all)]
#[path = "batch_script/wrong.rs"]
mod wrong_batch_script;
#[allow(clippy::all)]
#[path = "diagnose/wrong.rs"]
mod wrong_diagnose;
#[allow(clippy::all)]
#[path = "head_node/wrong.rs"]
mod wrong_head_node;
#[allow(clippy::all)]
#[path = "interface/wrong.rs"]
mod wrong_interface;
#[allow(clippy::all)]
#[path = "requeue/wrong.rs"]
mod wrong_requeue;
#[allow(clippy::all)]
#[path = "unequal_nodes/wrong.rs"]
mod wrong_unequal_nodes;

// Compiled in `lockstep-grading`. Listed here so that the formatter finds the files.
#[cfg(any())]
#[path = "."]
mod graders {
    #[path = "batch_script/grade.rs"]
    mod batch_script;
    #[path = "diagnose/grade.rs"]
    mod diagnose;
    #[path = "head_node/grade.rs"]
    mod head_node;
    #[path = "interface/grade.rs"]
    mod interface;
    #[path = "requeue/grade.rs"]
    mod requeue;
    #[path = "unequal_nodes/grade.rs"]
    mod unequal_nodes;
}

lockstep_answers::main!();
