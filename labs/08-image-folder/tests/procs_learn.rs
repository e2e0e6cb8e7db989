//! The lab's claim: two ranks on CPUs learn to classify 85 % of the held-out drawn houses in five epochs.

#![allow(clippy::unwrap_used)] // a test may

mod common;

use common::new_job;
use lockstep::events::Event;
use lockstep_testkit::margin;

#[test]
fn two_ranks_learn_to_grade_85_percent_in_five_epochs() {
    let sizes = ["--image-size", "64", "--width", "16", "--samples", "4096", "--batch-size", "8"];
    let seed = margin::seed(0).to_string();
    let args = [&sizes[..], &["--epochs", "5", "--lr", "0.001", "--device", "cpu", "--seed", &seed]].concat();
    let mut job = new_job();
    job.succeeds(2, &args);
    let accuracies: Vec<f64> = job.events()[&0]
        .iter()
        .filter_map(|(_, event)| if let Event::Eval { accuracy, .. } = event { Some(*accuracy) } else { None })
        .collect();
    assert_eq!(accuracies.len(), 5);
    let best = accuracies.iter().copied().fold(0.0, f64::max);
    margin::below("least errors of five epochs", 1.0 - best, 0.15);
}
