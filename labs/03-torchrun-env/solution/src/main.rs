//! Does what the grader asks of the answers. There is nothing to change here: each task is a file beside this one.

mod cuda;
mod device;
mod environment;
mod fleet;
mod nested;
mod tasks;
mod variables;
mod visible;

fn main() -> std::process::ExitCode {
    lockstep_exercise::main([
        tasks::environment(environment::environment),
        tasks::device(device::device),
        tasks::nested(nested::nested),
        tasks::visible(visible::visible),
    ])
}
