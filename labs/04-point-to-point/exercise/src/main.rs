//! Calls the answers with the grader's inputs. You do not change this file: each task has its own file next to it.

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
