//! Does what the grader asks of the answers. There is nothing to change here: each task is a file beside this one.

mod leaders;
mod mean;
mod ring;
mod ring_all_reduce;
mod same_order;
mod tasks;
mod transpose;

fn main() -> std::process::ExitCode {
    lockstep_exercise::main([
        tasks::mean(mean::mean),
        tasks::transpose(transpose::transpose),
        tasks::same_order(same_order::same_order),
        tasks::leaders(leaders::leaders),
        tasks::ring_all_reduce(ring_all_reduce::ring_all_reduce),
    ])
}
