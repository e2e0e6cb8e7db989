//! What a copy of the template promises: it learns alone, resumes after a kill with the same bits, and has the losses of its Python script.

#![allow(clippy::unwrap_used)] // a test may

use std::path::Path;

use lockstep_testkit::{Job, kill, margin};

const ARGS: [&str; 4] = ["--device", "cpu", "--snapshots", "snapshots"];

fn template() -> &'static Path {
    assert_cmd::cargo::cargo_bin!("lockstep-template")
}

/// Accuracy and loss of each epoch.
fn evaluations(printed: &str) -> Vec<[f64; 2]> {
    let numbers = |line: &str| {
        let (accuracy, loss) = line.split_once("Accuracy: ")?.1.split_once(", Loss: ")?;
        Some([accuracy.parse().ok()?, loss.parse().ok()?])
    };
    printed.lines().filter_map(numbers).collect()
}

#[test]
fn one_device_learns() {
    let ended = Job::new(template()).attempt(1, &ARGS);
    assert!(ended.succeeded(), "{}", ended.stderr());
    let [_, loss] = *evaluations(&ended.stdout()).last().unwrap();
    margin::below("loss on the spirals", loss, 0.4);
}

#[test]
fn a_killed_run_resumes_with_the_same_numbers() {
    let args = [&ARGS[..], &["--epochs", "4"]].concat();
    let undisturbed = Job::new(template()).attempt(2, &args).stdout();
    let mut job = Job::with(template(), &[kill(1, 2, 5)]);
    assert!(!job.attempt(2, &args).succeeded());
    let resumed = job.attempt(2, &args);
    assert!(resumed.succeeded(), "{}", resumed.stderr());
    let (all, last) = (evaluations(&undisturbed), evaluations(&resumed.stdout()));
    // The snapshot after epoch 1 may not have been complete when rank 1 died; then epoch 1 is repeated.
    assert!(all.len() == 4 && last.len() >= 2 && all.ends_with(&last), "{all:?} {last:?}");
}

#[test]
fn two_ranks_have_the_losses_of_two_ranks_in_python() {
    let Some(mut twin) = Job::in_python("the template and its Python script") else { return };
    let twin = twin.succeeds(2, &[concat!(env!("CARGO_MANIFEST_DIR"), "/train.py"), "--epochs", "2"]);
    let twin = evaluations(&twin.stdout());
    let own = Job::new(template()).attempt(2, &[&ARGS[..], &["--epochs", "2"]].concat());
    let own = evaluations(&own.stdout());
    assert_eq!((own.len(), twin.len()), (2, 2));
    for ([_, loss], [_, expected]) in own.into_iter().zip(twin) {
        assert!((loss - expected).abs() < 1e-3, "{loss} and {expected} in Python");
    }
}
