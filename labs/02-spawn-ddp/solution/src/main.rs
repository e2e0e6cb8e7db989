//! Does what the grader asks of the answers. There is nothing to change here: each task is a file beside this one.

mod average;
mod download;
mod epochs;
mod line;
mod prepare;
mod shard;
mod tasks;

fn main() -> std::process::ExitCode {
    lockstep_exercise::main([
        tasks::shard(shard::shard),
        tasks::average(average::average),
        tasks::epochs(epochs::epochs),
        tasks::line(line::line),
        tasks::prepare(prepare::prepare),
    ])
}
