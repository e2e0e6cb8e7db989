//! All answers of the course: its own, wrong ones that must get their diagnosis, and unusual right ones that must pass. Written by
//! `lockstep course skeleton`.

#[path = "norm/answer.rs"]
mod norm;
#[path = "resume/answer.rs"]
mod resume;
#[path = "speed/answer.rs"]
mod speed;
#[path = "token_mean/answer.rs"]
mod token_mean;
#[path = "windows/answer.rs"]
mod windows;

#[path = "../given/accumulating.rs"]
mod accumulating;
#[path = "../given/resumable.rs"]
mod resumable;
#[path = "../given/tasks.rs"]
mod tasks;

// Wrong answers break clippy's rules on purpose.
#[allow(clippy::all)]
#[path = "norm/wrong.rs"]
mod wrong_norm;
#[allow(clippy::all)]
#[path = "resume/wrong.rs"]
mod wrong_resume;
#[allow(clippy::all)]
#[path = "speed/wrong.rs"]
mod wrong_speed;
#[allow(clippy::all)]
#[path = "token_mean/wrong.rs"]
mod wrong_token_mean;
#[allow(clippy::all)]
#[path = "windows/wrong.rs"]
mod wrong_windows;

// Compiled in `lockstep-grading`. Listed here so that the formatter finds the files.
#[cfg(any())]
#[path = "."]
mod graders {
    #[path = "norm/grade.rs"]
    mod norm;
    #[path = "resume/grade.rs"]
    mod resume;
    #[path = "speed/grade.rs"]
    mod speed;
    #[path = "token_mean/grade.rs"]
    mod token_mean;
    #[path = "windows/grade.rs"]
    mod windows;
}

lockstep_answers::main!();
