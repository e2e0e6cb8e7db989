//! All answers of the course: its own, wrong ones that must get their diagnosis, and unusual right ones that must pass.

mod choose_layout;
mod column_row;
mod fill_pipeline;
mod free_units;
mod predict_bytes;

#[path = "../../given/count.rs"]
mod count;
#[path = "../../given/division.rs"]
mod division;
#[path = "../../given/layer.rs"]
mod layer;
#[path = "../../given/tasks.rs"]
mod tasks;
#[path = "../../given/unit.rs"]
mod unit;

#[allow(clippy::all)] // wrong answers break its rules on purpose
#[path = "../../mutants"]
mod mutants {
    pub mod choose_layout;
    pub mod column_row;
    pub mod fill_pipeline;
    pub mod free_units;
    pub mod predict_bytes;
}

// Compiled in `lockstep-labs`. Listed here so that the formatter finds the files.
#[cfg(any())]
#[path = "../../grading"]
mod grading {
    mod choose_layout;
    mod column_row;
    mod fill_pipeline;
    mod free_units;
    mod predict_bytes;
}

lockstep_answers::main!();
