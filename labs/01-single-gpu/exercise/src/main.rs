//! Does what the grader asks of the answers. There is nothing to change here: each task is a file next to this one.

mod batches;
mod checkpoints;
mod learns;
mod mean_loss;

#[path = "../../given/tasks.rs"]
mod tasks;

fn main() -> std::process::ExitCode {
    lockstep_exercise::main([
        tasks::batches(batches::batches),
        tasks::mean_loss(mean_loss::mean_loss),
        tasks::checkpoints(checkpoints::checkpoints),
        tasks::learns(learns::learns),
    ])
}
