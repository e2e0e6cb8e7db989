//! Calls the answers with the grader's inputs. You do not change this file: each task has its own file next to it.

mod accumulate;
mod alpha_beta;
mod compress;
mod large_batch;
mod log_loss;
mod power_sgd;
mod read_trace;
mod slow_ranks;
mod speed_up;

#[path = "../../given/tasks.rs"]
mod tasks;
#[path = "../../given/training.rs"]
mod training;

fn main() -> std::process::ExitCode {
    lockstep_exercise::main([
        tasks::alpha_beta(alpha_beta::alpha_beta),
        tasks::slow_ranks(slow_ranks::slow_ranks),
        tasks::log_loss(log_loss::log_loss),
        tasks::accumulate(accumulate::accumulate),
        tasks::compress(compress::compress),
        tasks::power_sgd(power_sgd::power_sgd),
        tasks::large_batch(large_batch::large_batch),
        tasks::speed_up(speed_up::speed_up),
        tasks::read_trace(read_trace::read_trace),
    ])
}
