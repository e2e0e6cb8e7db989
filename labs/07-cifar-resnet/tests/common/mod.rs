//! Jobs of this lab and their results.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // each test binary uses its part

use std::collections::BTreeMap;
use std::path::Path;

use lockstep_contract::fault::RankFault;
use lockstep_testkit::Job;
use tch::Tensor;

/// The sizes of a job that takes a second: an epoch has 6 steps for 1 rank, 3 for 2, 2 for 3.
const SIZES: [&str; 6] = ["--samples", "24", "--batch-size", "4", "--width", "4"];

pub fn lab() -> &'static Path {
    assert_cmd::cargo::cargo_bin!("lab-07-cifar-resnet")
}

pub fn new_job() -> Job {
    Job::new(lab())
}

pub fn job_with(faults: &[RankFault]) -> Job {
    Job::with(lab(), faults)
}

/// The quick job's arguments and more.
pub fn quick<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&SIZES[..], &["--snapshots", "snapshots", "--weights", "weights", "--device", "cpu"], more].concat()
}

/// The tensors of a safetensors file in the job's folder, by name.
pub fn tensors(job: &Job, file: &str) -> BTreeMap<String, Tensor> {
    Tensor::read_safetensors(job.path(file)).unwrap().into_iter().collect()
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The number after these words in each line that contains them.
pub fn numbers(printed: &str, words: &str) -> Vec<f64> {
    let after = printed.lines().filter_map(|line| line.split_once(words));
    after.map(|(_, rest)| rest.split([',', ' ']).next().unwrap().parse().unwrap()).collect()
}
