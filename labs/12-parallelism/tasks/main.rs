//! All answers of the course: its own, wrong ones that must get their diagnosis, and unusual right ones that must pass. Written by
//! `lockstep course skeleton`.

#[path = "choose_layout/answer.rs"]
mod choose_layout;
#[path = "column_row/answer.rs"]
mod column_row;
#[path = "fill_pipeline/answer.rs"]
mod fill_pipeline;
#[path = "free_units/answer.rs"]
mod free_units;
#[path = "predict_bytes/answer.rs"]
mod predict_bytes;

#[path = "../given/count.rs"]
mod count;
#[path = "../given/layers.rs"]
mod layers;
#[path = "../given/tasks.rs"]
mod tasks;

// Wrong answers break clippy's rules on purpose.
#[allow(clippy::all)]
#[path = "choose_layout/wrong.rs"]
mod wrong_choose_layout;
#[allow(clippy::all)]
#[path = "column_row/wrong.rs"]
mod wrong_column_row;
#[allow(clippy::all)]
#[path = "fill_pipeline/wrong.rs"]
mod wrong_fill_pipeline;
#[allow(clippy::all)]
#[path = "free_units/wrong.rs"]
mod wrong_free_units;
#[allow(clippy::all)]
#[path = "predict_bytes/wrong.rs"]
mod wrong_predict_bytes;

// Compiled in `lockstep-grading`. Listed here so that the formatter finds the files.
#[cfg(any())]
#[path = "."]
mod graders {
    #[path = "choose_layout/grade.rs"]
    mod choose_layout;
    #[path = "column_row/grade.rs"]
    mod column_row;
    #[path = "fill_pipeline/grade.rs"]
    mod fill_pipeline;
    #[path = "free_units/grade.rs"]
    mod free_units;
    #[path = "predict_bytes/grade.rs"]
    mod predict_bytes;
}

lockstep_answers::main!();
