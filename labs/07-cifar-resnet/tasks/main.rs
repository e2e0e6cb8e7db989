//! All answers of the course: its own, wrong ones that must get their diagnosis, and unusual right ones that must pass. Written by
//! `lockstep course skeleton`.

#[path = "accuracy/answer.rs"]
mod accuracy;
#[path = "crop/answer.rs"]
mod crop;
#[path = "evaluation_shard/answer.rs"]
mod evaluation_shard;
#[path = "learning_rate/answer.rs"]
mod learning_rate;
#[path = "statistics/answer.rs"]
mod statistics;

#[path = "../given/tasks.rs"]
mod tasks;

// Wrong answers break clippy's rules on purpose.
#[allow(clippy::all)]
#[path = "accuracy/wrong.rs"]
mod wrong_accuracy;
#[allow(clippy::all)]
#[path = "crop/wrong.rs"]
mod wrong_crop;
#[allow(clippy::all)]
#[path = "evaluation_shard/wrong.rs"]
mod wrong_evaluation_shard;
#[allow(clippy::all)]
#[path = "learning_rate/wrong.rs"]
mod wrong_learning_rate;
#[allow(clippy::all)]
#[path = "statistics/wrong.rs"]
mod wrong_statistics;

// Compiled in `lockstep-grading`. Listed here so that the formatter finds the files.
#[cfg(any())]
#[path = "."]
mod graders {
    #[path = "accuracy/grade.rs"]
    mod accuracy;
    #[path = "crop/grade.rs"]
    mod crop;
    #[path = "evaluation_shard/grade.rs"]
    mod evaluation_shard;
    #[path = "learning_rate/grade.rs"]
    mod learning_rate;
    #[path = "statistics/grade.rs"]
    mod statistics;
}

lockstep_answers::main!();
