//! Does what the grader asks of the answers. There is nothing to change here: each task is a file next to this one.

mod device;
mod environment;
mod nested;
mod visible;

#[path = "../../given/cuda.rs"]
mod cuda;
#[path = "../../given/fleet.rs"]
mod fleet;
#[path = "../../given/tasks.rs"]
mod tasks;
#[path = "../../given/variables.rs"]
mod variables;

fn main() -> std::process::ExitCode {
    lockstep_exercise::main([
        tasks::environment(environment::environment),
        tasks::device(device::device),
        tasks::nested(nested::nested),
        tasks::visible(visible::visible),
    ])
}
