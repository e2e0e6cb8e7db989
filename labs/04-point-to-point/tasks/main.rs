//! All answers of the course: its own, wrong ones that must get their diagnosis, and unusual right ones that must pass. Written by
//! `lockstep course skeleton`.

#[path = "deadline/answer.rs"]
mod deadline;
#[path = "exchange/answer.rs"]
mod exchange;
#[path = "prefetch/answer.rs"]
mod prefetch;
#[path = "ring/answer.rs"]
mod ring;

#[path = "../given/tasks.rs"]
mod tasks;

// Wrong answers break clippy's rules on purpose.
#[allow(clippy::all)]
#[path = "deadline/wrong.rs"]
mod wrong_deadline;
#[allow(clippy::all)]
#[path = "exchange/wrong.rs"]
mod wrong_exchange;
#[allow(clippy::all)]
#[path = "prefetch/wrong.rs"]
mod wrong_prefetch;
#[allow(clippy::all)]
#[path = "ring/wrong.rs"]
mod wrong_ring;

// Compiled in `lockstep-grading`. Listed here so that the formatter finds the files.
#[cfg(any())]
#[path = "."]
mod graders {
    #[path = "deadline/grade.rs"]
    mod deadline;
    #[path = "exchange/grade.rs"]
    mod exchange;
    #[path = "prefetch/grade.rs"]
    mod prefetch;
    #[path = "ring/grade.rs"]
    mod ring;
    #[path = "waits.rs"]
    mod waits;
}

lockstep_answers::main!();
