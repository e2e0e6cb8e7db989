//! All answers of the course: its own, wrong ones that must get their diagnosis, and unusual right ones that must pass. Written by
//! `lockstep course skeleton`.

#[path = "best/answer.rs"]
mod best;
#[path = "freeze/answer.rs"]
mod freeze;
#[path = "plateau/answer.rs"]
mod plateau;
#[path = "smoothing/answer.rs"]
mod smoothing;
#[path = "two_files/answer.rs"]
mod two_files;

#[path = "../given/job.rs"]
mod job;
#[path = "../given/tasks.rs"]
mod tasks;

// Wrong answers break clippy's rules on purpose.
#[allow(clippy::all)]
#[path = "best/wrong.rs"]
mod wrong_best;
#[allow(clippy::all)]
#[path = "freeze/wrong.rs"]
mod wrong_freeze;
#[allow(clippy::all)]
#[path = "plateau/wrong.rs"]
mod wrong_plateau;
#[allow(clippy::all)]
#[path = "smoothing/wrong.rs"]
mod wrong_smoothing;
#[allow(clippy::all)]
#[path = "two_files/wrong.rs"]
mod wrong_two_files;

// Compiled in `lockstep-grading`. Listed here so that the formatter finds the files.
#[cfg(any())]
#[path = "."]
mod graders {
    #[path = "best/grade.rs"]
    mod best;
    #[path = "freeze/grade.rs"]
    mod freeze;
    #[path = "plateau/grade.rs"]
    mod plateau;
    #[path = "smoothing/grade.rs"]
    mod smoothing;
    #[path = "two_files/grade.rs"]
    mod two_files;
}

lockstep_answers::main!();
