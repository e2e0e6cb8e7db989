//! All answers of the course: its own, wrong ones that must get their diagnosis, and unusual right ones that must pass. Written by
//! `lockstep course skeleton`.

#[path = "newest/answer.rs"]
mod newest;
#[path = "next_step/answer.rs"]
mod next_step;
#[path = "order/answer.rs"]
mod order;
#[path = "reshard/answer.rs"]
mod reshard;
#[path = "state/answer.rs"]
mod state;
#[path = "tree_sum/answer.rs"]
mod tree_sum;
#[path = "virtual_ranks/answer.rs"]
mod virtual_ranks;
#[path = "whole/answer.rs"]
mod whole;

#[path = "../given/disk.rs"]
mod disk;
#[path = "../given/ranks.rs"]
mod ranks;
#[path = "../given/snapshots.rs"]
mod snapshots;
#[path = "../given/tasks.rs"]
mod tasks;

// Wrong answers break clippy's rules on purpose.
#[allow(clippy::all)]
#[path = "newest/wrong.rs"]
mod wrong_newest;
#[allow(clippy::all)]
#[path = "next_step/wrong.rs"]
mod wrong_next_step;
#[allow(clippy::all)]
#[path = "order/wrong.rs"]
mod wrong_order;
#[allow(clippy::all)]
#[path = "reshard/wrong.rs"]
mod wrong_reshard;
#[allow(clippy::all)]
#[path = "state/wrong.rs"]
mod wrong_state;
#[allow(clippy::all)]
#[path = "tree_sum/wrong.rs"]
mod wrong_tree_sum;
#[allow(clippy::all)]
#[path = "virtual_ranks/wrong.rs"]
mod wrong_virtual_ranks;
#[allow(clippy::all)]
#[path = "whole/wrong.rs"]
mod wrong_whole;

// Compiled in `lockstep-grading`. Listed here so that the formatter finds the files.
#[cfg(any())]
#[path = "."]
mod graders {
    #[path = "newest/grade.rs"]
    mod newest;
    #[path = "next_step/grade.rs"]
    mod next_step;
    #[path = "order/grade.rs"]
    mod order;
    #[path = "reshard/grade.rs"]
    mod reshard;
    #[path = "state/grade.rs"]
    mod state;
    #[path = "tree_sum/grade.rs"]
    mod tree_sum;
    #[path = "virtual_ranks/grade.rs"]
    mod virtual_ranks;
    #[path = "whole/grade.rs"]
    mod whole;
}

lockstep_answers::main!();
