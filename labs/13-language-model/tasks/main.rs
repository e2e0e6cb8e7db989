//! All answers of the course: its own, wrong ones that must get their diagnosis, and unusual right ones that must pass. Written by
//! `lockstep course skeleton`.

#[path = "experts/answer.rs"]
mod experts;
#[path = "norm/answer.rs"]
mod norm;
#[path = "resume/answer.rs"]
mod resume;
#[path = "ring_attention/answer.rs"]
mod ring_attention;
#[path = "speed/answer.rs"]
mod speed;
#[path = "token_mean/answer.rs"]
mod token_mean;
#[path = "windows/answer.rs"]
mod windows;

#[path = "../given/accumulating.rs"]
mod accumulating;
#[path = "../given/gpt.rs"]
mod gpt;
#[path = "../given/mixture.rs"]
mod mixture;
#[path = "../given/program.rs"]
mod program;
#[path = "../given/resumable.rs"]
mod resumable;
#[path = "../given/ring.rs"]
mod ring;
#[path = "../given/tasks.rs"]
mod tasks;
#[path = "../given/training.rs"]
mod training;

// Wrong answers break clippy's rules on purpose.
#[allow(clippy::all)]
#[path = "experts/wrong.rs"]
mod wrong_experts;
#[allow(clippy::all)]
#[path = "norm/wrong.rs"]
mod wrong_norm;
#[allow(clippy::all)]
#[path = "resume/wrong.rs"]
mod wrong_resume;
#[allow(clippy::all)]
#[path = "ring_attention/wrong.rs"]
mod wrong_ring_attention;
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
    #[path = "experts/grade.rs"]
    mod experts;
    #[path = "norm/grade.rs"]
    mod norm;
    #[path = "resume/grade.rs"]
    mod resume;
    #[path = "ring_attention/grade.rs"]
    mod ring_attention;
    #[path = "routing.rs"]
    mod routing;
    #[path = "speed/grade.rs"]
    mod speed;
    #[path = "token_mean/grade.rs"]
    mod token_mean;
    #[path = "windows/grade.rs"]
    mod windows;
}

lockstep_answers::main!();
