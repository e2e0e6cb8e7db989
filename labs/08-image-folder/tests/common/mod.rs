//! Jobs of this lab and their results.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // each test binary uses its part

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Output;

use lockstep_contract::fault::RankFault;
use lockstep_testkit::{Job, Running};
use tch::Tensor;

/// The sizes of a job that takes seconds: 24 houses in batches of 4, so that an epoch has 6 steps for 1 rank and 3 for 2.
const SIZES: [&str; 8] = ["--samples", "24", "--batch-size", "4", "--image-size", "40", "--width", "4"];

pub fn lab() -> &'static Path {
    assert_cmd::cargo::cargo_bin!("lab-08-image-folder")
}

pub fn new_job() -> Job {
    Job::new(lab())
}

pub fn job_with(faults: &[RankFault]) -> Job {
    Job::with(lab(), faults)
}

/// The quick job's arguments and more.
pub fn quick<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let rest = ["--lr", "0.001", "--weights", "weights", "--device", "cpu"];
    [&SIZES[..], &rest, more].concat()
}

/// Draws 24 houses for training, and others, into the folder `houses` of the job.
pub fn draw_houses(job: &Job) {
    let output = draw(job, "24");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Draws `houses` houses into the folder `houses` of the job.
pub fn draw(job: &Job, samples: &str) -> Output {
    let mut command = job.command(assert_cmd::cargo::cargo_bin!("lab-08-draw-houses"));
    command.args(["houses", "--samples", samples]);
    Running::start(command).end()
}

/// The tensors of a safetensors file in the job's folder, by name.
pub fn tensors(job: &Job, file: &str) -> BTreeMap<String, Tensor> {
    Tensor::read_safetensors(job.path(file)).unwrap().into_iter().collect()
}

/// The best model's file.
pub fn best(job: &Job) -> Vec<u8> {
    fs::read(job.path("snapshots/best_model.safetensors")).unwrap()
}

/// The printed lines that contain these words.
pub fn lines<'a>(printed: &'a str, words: &str) -> Vec<&'a str> {
    printed.lines().filter(|line| line.contains(words)).collect()
}
