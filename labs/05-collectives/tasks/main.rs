//! All answers of the course: its own, wrong ones that must get their diagnosis, and unusual right ones that must pass. Written by
//! `lockstep course skeleton`.

#[path = "leaders/answer.rs"]
mod leaders;
#[path = "mean/answer.rs"]
mod mean;
#[path = "ring_all_reduce/answer.rs"]
mod ring_all_reduce;
#[path = "same_order/answer.rs"]
mod same_order;
#[path = "transpose/answer.rs"]
mod transpose;

#[path = "../given/ring.rs"]
mod ring;
#[path = "../given/tasks.rs"]
mod tasks;

// Wrong answers break clippy's rules on purpose.
#[allow(clippy::all)]
#[path = "leaders/wrong.rs"]
mod wrong_leaders;
#[allow(clippy::all)]
#[path = "mean/wrong.rs"]
mod wrong_mean;
#[allow(clippy::all)]
#[path = "ring_all_reduce/wrong.rs"]
mod wrong_ring_all_reduce;
#[allow(clippy::all)]
#[path = "same_order/wrong.rs"]
mod wrong_same_order;
#[allow(clippy::all)]
#[path = "transpose/wrong.rs"]
mod wrong_transpose;

// Compiled in `lockstep-grading`. Listed here so that the formatter finds the files.
#[cfg(any())]
#[path = "."]
mod graders {
    #[path = "leaders/grade.rs"]
    mod leaders;
    #[path = "mean/grade.rs"]
    mod mean;
    #[path = "ring_all_reduce/grade.rs"]
    mod ring_all_reduce;
    #[path = "same_order/grade.rs"]
    mod same_order;
    #[path = "transpose/grade.rs"]
    mod transpose;
}

lockstep_answers::main!();
