//! Jobs of this lab.

#![allow(dead_code, unreachable_pub)] // each test binary uses its part

use std::path::Path;

use lockstep_contract::fault::RankFault;
use lockstep_testkit::Job;

/// The arguments of a job that takes a second. An epoch has 25 steps for 1 rank, 13 for 2, 9 for 3, 7 for 4; a snapshot is saved
/// after every 3 of them and at the epochs' ends.
pub fn quick(model: &'static str, epochs: &'static str) -> Vec<&'static str> {
    let sizes = ["--samples", "50", "--batch-size", "2", "--save-every-steps", "3"];
    let rest = ["--model", model, "--epochs", epochs, "--weights", "weights", "--device", "cpu"];
    [&sizes[..], &rest].concat()
}

pub fn lab() -> &'static Path {
    assert_cmd::cargo::cargo_bin!("lab-06-snapshot-resume")
}

pub fn new_job() -> Job {
    Job::new(lab())
}

pub fn job_with(faults: &[RankFault]) -> Job {
    Job::with(lab(), faults)
}

pub fn undisturbed(world: usize, args: &[&str]) -> Vec<u8> {
    lockstep_testkit::undisturbed(lab(), world, args)
}
