//! Calls the answers with the grader's inputs. You do not change this file: each task has its own file next to it.

mod bus_bandwidth;
mod finish;
mod overlap;
mod place;
mod ring;
mod share_id;

#[path = "../../given/pass.rs"]
mod pass;
#[path = "../../given/tasks.rs"]
mod tasks;

fn main() -> std::process::ExitCode {
    lockstep_exercise::main([
        tasks::share_id(share_id::share_id),
        tasks::ring(ring::ring),
        tasks::overlap(overlap::overlap),
        tasks::finish(finish::finish),
        tasks::bus_bandwidth(bus_bandwidth::bus_bandwidth),
        tasks::place(place::place),
    ])
}
