//! Does what the grader asks of the answers. There is nothing to change here: each task is a file next to this one.

mod best;
mod freeze;
mod plateau;
mod smoothing;
mod two_files;

#[path = "../../given/job.rs"]
mod job;
#[path = "../../given/tasks.rs"]
mod tasks;

fn main() -> std::process::ExitCode {
    lockstep_exercise::main([
        tasks::freeze(freeze::freeze),
        tasks::smoothing(smoothing::smoothing),
        tasks::plateau(plateau::plateau),
        tasks::best(best::best),
        tasks::two_files(two_files::two_files),
    ])
}
