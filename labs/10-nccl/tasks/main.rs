//! All answers of the course: its own, wrong ones that must get their diagnosis, and unusual right ones that must pass. Written by
//! `lockstep course skeleton`.

#[path = "bus_bandwidth/answer.rs"]
mod bus_bandwidth;
#[path = "finish/answer.rs"]
mod finish;
#[path = "overlap/answer.rs"]
mod overlap;
#[path = "place/answer.rs"]
mod place;
#[path = "ring/answer.rs"]
mod ring;
#[path = "share_id/answer.rs"]
mod share_id;

#[path = "../given/pass.rs"]
mod pass;
#[path = "../given/tasks.rs"]
mod tasks;

// Wrong answers break clippy's rules on purpose.
#[allow(clippy::all)]
#[path = "bus_bandwidth/wrong.rs"]
mod wrong_bus_bandwidth;
#[allow(clippy::all)]
#[path = "finish/wrong.rs"]
mod wrong_finish;
#[allow(clippy::all)]
#[path = "overlap/wrong.rs"]
mod wrong_overlap;
#[allow(clippy::all)]
#[path = "place/wrong.rs"]
mod wrong_place;
#[allow(clippy::all)]
#[path = "ring/wrong.rs"]
mod wrong_ring;
#[allow(clippy::all)]
#[path = "share_id/wrong.rs"]
mod wrong_share_id;

// Compiled in `lockstep-grading`. Listed here so that the formatter finds the files.
#[cfg(any())]
#[path = "."]
mod graders {
    #[path = "bus_bandwidth/grade.rs"]
    mod bus_bandwidth;
    #[path = "device.rs"]
    mod device;
    #[path = "finish/grade.rs"]
    mod finish;
    #[path = "overlap/grade.rs"]
    mod overlap;
    #[path = "place/grade.rs"]
    mod place;
    #[path = "ring/grade.rs"]
    mod ring;
    #[path = "share_id/grade.rs"]
    mod share_id;
}

lockstep_answers::main!();
