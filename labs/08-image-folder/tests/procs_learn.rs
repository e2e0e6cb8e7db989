//! The lab's claim: two ranks on CPUs learn to grade drawn houses in the run without options, far better than a guess at three classes.

#![allow(clippy::unwrap_used)] // a test may

mod common;

use common::new_job;
use lockstep::events::Event;
use lockstep_testkit::margin;

#[test]
fn two_ranks_learn_to_grade_in_the_run_without_options() {
    let seed = margin::seed(0).to_string();
    let args = ["--device", "cpu", "--seed", &seed];
    let mut job = new_job();
    job.succeeds(2, &args);
    let accuracies: Vec<f64> = job.events()[&0]
        .iter()
        .filter_map(|(_, event)| if let Event::Eval { accuracy, .. } = event { Some(*accuracy) } else { None })
        .collect();
    assert_eq!(accuracies.len(), 5);
    let best = accuracies.iter().copied().fold(0.0, f64::max);
    margin::below("least errors of five epochs", 1.0 - best, 0.5);
}
