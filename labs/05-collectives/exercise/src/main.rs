//! Calls the answers with the grader's inputs. You do not change this file: each task has its own file next to it.

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
