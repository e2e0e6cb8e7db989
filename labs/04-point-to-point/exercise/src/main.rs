//! Does what the grader asks of the answers. There is nothing to change here: each task is a file next to this one.

mod deadline;
mod exchange;
mod prefetch;
mod ring;

#[path = "../../given/tasks.rs"]
mod tasks;

fn main() -> std::process::ExitCode {
    lockstep_exercise::main([
        tasks::ring(ring::ring),
        tasks::exchange(exchange::exchange),
        tasks::prefetch(prefetch::prefetch),
        tasks::deadline(deadline::deadline),
    ])
}
