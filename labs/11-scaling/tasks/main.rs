//! All answers of the course: its own, wrong ones that must get their diagnosis, and unusual right ones that must pass. Written by
//! `lockstep course skeleton`.

#[path = "accumulate/answer.rs"]
mod accumulate;
#[path = "alpha_beta/answer.rs"]
mod alpha_beta;
#[path = "compress/answer.rs"]
mod compress;
#[path = "large_batch/answer.rs"]
mod large_batch;
#[path = "log_loss/answer.rs"]
mod log_loss;
#[path = "power_sgd/answer.rs"]
mod power_sgd;
#[path = "read_trace/answer.rs"]
mod read_trace;
#[path = "slow_ranks/answer.rs"]
mod slow_ranks;
#[path = "speed_up/answer.rs"]
mod speed_up;

#[path = "../given/tasks.rs"]
mod tasks;
#[path = "../given/training.rs"]
mod training;

// Wrong answers break clippy's rules on purpose.
#[allow(clippy::all)]
#[path = "accumulate/wrong.rs"]
mod wrong_accumulate;
#[allow(clippy::all)]
#[path = "alpha_beta/wrong.rs"]
mod wrong_alpha_beta;
#[allow(clippy::all)]
#[path = "compress/wrong.rs"]
mod wrong_compress;
#[allow(clippy::all)]
#[path = "large_batch/wrong.rs"]
mod wrong_large_batch;
#[allow(clippy::all)]
#[path = "log_loss/wrong.rs"]
mod wrong_log_loss;
#[allow(clippy::all)]
#[path = "power_sgd/wrong.rs"]
mod wrong_power_sgd;
#[allow(clippy::all)]
#[path = "read_trace/wrong.rs"]
mod wrong_read_trace;
#[allow(clippy::all)]
#[path = "slow_ranks/wrong.rs"]
mod wrong_slow_ranks;
#[allow(clippy::all)]
#[path = "speed_up/wrong.rs"]
mod wrong_speed_up;

// Compiled in `lockstep-grading`. Listed here so that the formatter finds the files.
#[cfg(any())]
#[path = "."]
mod graders {
    #[path = "accumulate/grade.rs"]
    mod accumulate;
    #[path = "alpha_beta/grade.rs"]
    mod alpha_beta;
    #[path = "compress/grade.rs"]
    mod compress;
    #[path = "large_batch/grade.rs"]
    mod large_batch;
    #[path = "log_loss/grade.rs"]
    mod log_loss;
    #[path = "power_sgd/grade.rs"]
    mod power_sgd;
    #[path = "read_trace/grade.rs"]
    mod read_trace;
    #[path = "slow_ranks/grade.rs"]
    mod slow_ranks;
    #[path = "speed_up/grade.rs"]
    mod speed_up;
}

lockstep_answers::main!();
