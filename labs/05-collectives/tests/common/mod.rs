//! Runs the lab as a user does: with ranks as threads of one process, or as processes of a launcher.

#![allow(dead_code, unreachable_pub)] // each test binary uses its part

use assert_cmd::cargo::cargo_bin;
use lockstep_testkit::Job;
use serde_json::Value;

pub fn lab() -> Job {
    Job::new(cargo_bin!("lab-05-collectives"))
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What each rank wrote with `--results results`.
pub fn results(job: &Job, world: usize) -> Vec<Value> {
    (0..world).map(|rank| job.results(rank)).collect()
}
