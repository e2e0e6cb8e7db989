//! Calls the answers with the grader's inputs. You do not change this file: each task has its own file next to it.

mod average;
mod distributed;
mod epochs;
mod line;
mod prepare;
mod shard;

#[path = "../../given/download.rs"]
mod download;
#[path = "../../given/job.rs"]
mod job;
#[path = "../../given/tasks.rs"]
mod tasks;

fn main() -> std::process::ExitCode {
    lockstep_exercise::main([
        tasks::shard(shard::shard),
        tasks::average(average::average),
        tasks::epochs(epochs::epochs),
        tasks::line(line::line),
        tasks::prepare(prepare::prepare),
        tasks::distributed(distributed::distributed),
    ])
}
