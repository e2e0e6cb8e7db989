//! The lab's promise: whatever is killed, and whenever, the run ends with the same bits as a run without a failure, including
//! those of batch norm's buffers.

#![allow(clippy::unwrap_used)] // a test may

mod common;

use std::fs;

use common::{job_with, lab, quick, tensors};
use lockstep_contract::fault::{Act, RankFault, SavePhase};
use lockstep_testkit::{Job, kill, undisturbed, while_saving};

const MODEL: &str = "snapshots/resnet_distributed.safetensors";

fn args<'a>(more: &[&'a str]) -> Vec<&'a str> {
    quick(&[&["--epochs", "2", "--save-every-steps", "2"], more].concat())
}

/// Starts the job again after each fault, until it succeeds.
fn survives(world: usize, faults: &[RankFault], args: &[&str]) {
    let mut job = job_with(faults);
    assert_eq!(job.finish(world, args), faults.len() + 1);
    assert_eq!(job.injected(), faults.len());
    let names = tensors(&job, "weights/rank-0.safetensors");
    assert!(names.contains_key("layer4.1.bn2.running_var") && names.contains_key("bn1.running_mean"));
    assert!(job.weights(world) == undisturbed(lab(), world, args), "the weights have other bits");
    assert!(model(&job) == job.weights(world), "the model's file is not rank 0's last weights");
}

fn model(job: &Job) -> Vec<u8> {
    fs::read(job.path(MODEL)).unwrap()
}

/// Before the first snapshot, and when the newest is within an epoch and at the start of one.
#[test]
fn kills_of_either_of_two_ranks_change_no_bit() {
    survives(2, &[kill(1, 0, 0), kill(0, 0, 2), kill(1, 1, 1)], &args(&[]));
}

#[test]
fn kills_of_a_process_alone_change_no_bit() {
    survives(1, &[kill(0, 0, 3), kill(0, 1, 5)], &args(&[]));
}

#[test]
fn kills_under_synchronized_batch_norm_and_a_warm_up_change_no_bit() {
    let more = ["--sync-batch-norm", "--lr-for-batch", "4", "--warmup-epochs", "2", "--workers", "2"];
    survives(2, &[kill(0, 0, 2)], &args(&more));
}

#[test]
fn kills_in_mixed_precision_change_no_bit() {
    // The first steps overflow, so that the scale is another one in each.
    survives(2, &[kill(1, 0, 2)], &args(&["--precision", "float16"]));
}

#[test]
fn kills_in_bfloat16_with_channels_last_change_no_bit() {
    survives(2, &[kill(0, 1, 1)], &args(&["--precision", "bfloat16", "--channels-last"]));
}

#[test]
fn a_run_that_is_killed_once_its_last_snapshot_has_its_name_has_its_model_and_then_only_evaluates() {
    let mut job = job_with(&[while_saving(2, 0, SavePhase::Named, &[Act::Signal(9)])]);
    assert!(!job.attempt(2, &args(&[])).succeeded());
    let before = model(&job);
    fs::remove_file(job.path(MODEL)).unwrap();
    let again = job.succeeds(2, &args(&[]));
    assert!(!again.stdout().contains("[rank"), "{}", again.stdout());
    assert_eq!(again.stdout().matches("Epoch: 2, Accuracy: ").count(), 1, "{}", again.stdout());
    assert!(job.weights(2) == before);
    assert!(model(&job) == before, "a model that is gone is written again");
}
