//! Does what the grader asks of the answers. There is nothing to change here: each task is a file beside this one.

mod average;
mod shard;
mod tasks;

fn main() -> std::process::ExitCode {
    lockstep_exercise::main([tasks::shard(shard::shard), tasks::average(average::average)])
}
