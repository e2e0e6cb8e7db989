//! All answers of the course: its own, wrong ones that must get their diagnosis, and unusual right ones that must pass.

mod accumulate;
mod alpha_beta;
mod compress;
mod large_batch;
mod log_loss;
mod power_sgd;
mod read_trace;
mod slow_ranks;
mod speed_up;

#[path = "../../given/communication.rs"]
mod communication;
#[path = "../../given/counters.rs"]
mod counters;
#[path = "../../given/net.rs"]
mod net;
#[path = "../../given/power.rs"]
mod power;
#[path = "../../given/recipe.rs"]
mod recipe;
#[path = "../../given/speed.rs"]
mod speed;
#[path = "../../given/tasks.rs"]
mod tasks;
#[path = "../../given/trace.rs"]
mod trace;

#[allow(clippy::all)] // wrong answers break its rules on purpose
#[path = "../../mutants"]
mod mutants {
    pub mod accumulate;
    pub mod alpha_beta;
    pub mod compress;
    pub mod large_batch;
    pub mod log_loss;
    pub mod power_sgd;
    pub mod read_trace;
    pub mod slow_ranks;
    pub mod speed_up;
}

// Compiled in `lockstep-labs`. Listed here so that the formatter finds the files.
#[cfg(any())]
#[path = "../../grading"]
mod grading {
    mod accumulate;
    mod alpha_beta;
    mod compress;
    mod large_batch;
    mod log_loss;
    mod power_sgd;
    mod read_trace;
    mod slow_ranks;
    mod speed_up;
}

lockstep_answers::main!();
