//! All answers of the course: its own, wrong ones that must get their diagnosis, and unusual right ones that must pass. Written by
//! `lockstep course skeleton`.

#[path = "average/answer.rs"]
mod average;
#[path = "distributed/answer.rs"]
mod distributed;
#[path = "epochs/answer.rs"]
mod epochs;
#[path = "line/answer.rs"]
mod line;
#[path = "prepare/answer.rs"]
mod prepare;
#[path = "shard/answer.rs"]
mod shard;

#[path = "../given/download.rs"]
mod download;
#[path = "../given/job.rs"]
mod job;
#[path = "../given/tasks.rs"]
mod tasks;

// Wrong answers break clippy's rules on purpose.
#[allow(clippy::all)]
#[path = "average/wrong.rs"]
mod wrong_average;
#[allow(clippy::all)]
#[path = "distributed/wrong.rs"]
mod wrong_distributed;
#[allow(clippy::all)]
#[path = "epochs/wrong.rs"]
mod wrong_epochs;
#[allow(clippy::all)]
#[path = "line/wrong.rs"]
mod wrong_line;
#[allow(clippy::all)]
#[path = "prepare/wrong.rs"]
mod wrong_prepare;
#[allow(clippy::all)]
#[path = "shard/wrong.rs"]
mod wrong_shard;

// Compiled in `lockstep-grading`. Listed here so that the formatter finds the files.
#[cfg(any())]
#[path = "."]
mod graders {
    #[path = "average/grade.rs"]
    mod average;
    #[path = "distributed/grade.rs"]
    mod distributed;
    #[path = "epochs/grade.rs"]
    mod epochs;
    #[path = "line/grade.rs"]
    mod line;
    #[path = "prepare/grade.rs"]
    mod prepare;
    #[path = "shard/grade.rs"]
    mod shard;
}

lockstep_answers::main!();
