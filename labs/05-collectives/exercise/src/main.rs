//! Does what the grader asks of the answers. There is nothing to change here: each task is a file next to this one.

mod leaders;
mod mean;
mod ring_all_reduce;
mod same_order;
mod transpose;

#[path = "../../given/ring.rs"]
mod ring;
#[path = "../../given/tasks.rs"]
mod tasks;

fn main() -> std::process::ExitCode {
    lockstep_exercise::main([
        tasks::mean(mean::mean),
        tasks::transpose(transpose::transpose),
        tasks::same_order(same_order::same_order),
        tasks::leaders(leaders::leaders),
        tasks::ring_all_reduce(ring_all_reduce::ring_all_reduce),
    ])
}
