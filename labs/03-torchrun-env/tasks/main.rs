//! All answers of the course: its own, wrong ones that must get their diagnosis, and unusual right ones that must pass. Written by
//! `lockstep course skeleton`.

#[path = "device/answer.rs"]
mod device;
#[path = "environment/answer.rs"]
mod environment;
#[path = "nested/answer.rs"]
mod nested;
#[path = "visible/answer.rs"]
mod visible;

#[path = "../given/simulated.rs"]
mod simulated;
#[path = "../given/tasks.rs"]
mod tasks;

// Wrong answers break clippy's rules on purpose.
#[allow(clippy::all)]
#[path = "device/wrong.rs"]
mod wrong_device;
#[allow(clippy::all)]
#[path = "environment/wrong.rs"]
mod wrong_environment;
#[allow(clippy::all)]
#[path = "nested/wrong.rs"]
mod wrong_nested;
#[allow(clippy::all)]
#[path = "visible/wrong.rs"]
mod wrong_visible;

// Compiled in `lockstep-grading`. Listed here so that the formatter finds the files.
#[cfg(any())]
#[path = "."]
mod graders {
    #[path = "device/grade.rs"]
    mod device;
    #[path = "environment/grade.rs"]
    mod environment;
    #[path = "nested/grade.rs"]
    mod nested;
    #[path = "visible/grade.rs"]
    mod visible;
}

lockstep_answers::main!();
