//! Does what the grader asks of the answers. There is nothing to change here: each task is a file beside this one.

mod disk;
mod files;
mod job;
mod newest;
mod next_step;
mod order;
mod state;
mod tasks;
mod whole;

fn main() -> std::process::ExitCode {
    lockstep_exercise::main([
        tasks::next_step(next_step::next_step),
        tasks::state(state::state),
        tasks::order(order::order),
        tasks::whole(whole::whole),
        tasks::newest(newest::newest),
    ])
}
