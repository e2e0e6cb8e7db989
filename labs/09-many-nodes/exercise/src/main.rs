//! Calls the answers with the grader's inputs. You do not change this file: each task has its own file next to it.

mod batch_script;
mod diagnose;
mod head_node;
mod interface;
mod requeue;
mod unequal_nodes;

#[path = "../../given/recordings.rs"]
mod recordings;
#[path = "../../given/site.rs"]
mod site;
#[path = "../../given/tasks.rs"]
mod tasks;

fn main() -> std::process::ExitCode {
    lockstep_exercise::main([
        tasks::head_node(head_node::head_node),
        tasks::unequal_nodes(unequal_nodes::unequal_nodes),
        tasks::interface(interface::interface),
        tasks::batch_script(batch_script::batch_script),
        tasks::diagnose(diagnose::diagnose),
        tasks::requeue(requeue::requeue),
    ])
}
