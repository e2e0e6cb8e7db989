//! What lab 13 promises besides what `lockstep verify` checks: it learns from the book's pages, has the losses of its Python script, and goes
//! on in the middle of an epoch on another number of ranks.

#![allow(clippy::unwrap_used)] // a test may

use std::fs;
use std::path::Path;

use lockstep_testkit::python::assert_prints_alike;
use lockstep_testkit::{Job, kill, margin};

fn lab() -> &'static Path {
    assert_cmd::cargo::cargo_bin!("lab-13-language-model")
}

/// The losses on held-out text of all epochs.
fn losses(printed: &str) -> Vec<f64> {
    let number = |line: &str| line.split_once("Loss: ")?.1.split([',', ' ']).next()?.parse().ok();
    printed.lines().filter(|line| line.contains("Epoch: ")).filter_map(number).collect()
}

#[test]
fn it_learns_from_the_books_pages_and_writes() {
    let seed = margin::seed(0).to_string();
    let args = ["--device", "cpu", "--epochs", "4", "--samples", "600", "--held-out", "60", "--seed", &seed];
    let printed = Job::new(lab()).succeeds(2, &args).stdout();
    let losses = losses(&printed);
    assert_eq!(losses.len(), 4, "{printed}");
    // The frequencies of its tokens alone give a loss of 5.6, equal chances 6.2.
    margin::below("the loss on held-out text", losses[3], 5.0);
    assert!(printed.contains("It writes:"), "{printed}");
}

#[test]
fn two_ranks_have_the_losses_of_two_ranks_in_python() {
    let Some(mut twin) = Job::in_python("lab 13 and its Python script") else { return };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/language_model.py");
    let mut own = Job::new(lab());
    for job in [&twin, &own] {
        fs::create_dir(job.path("text")).unwrap();
        let lines: String = (0..400).map(|n| format!("{n} and {} are {}\n", n % 7, n + n % 7)).collect();
        let (train, validation) = lines.split_at(lines.len() / 10 * 9);
        fs::write(job.path("text/train.txt"), train).unwrap();
        fs::write(job.path("text/validation.txt"), validation).unwrap();
    }
    let args = ["--data", "text", "--characters", "--epochs", "2", "--window", "20", "--width", "32"];
    let python = twin.succeeds(2, &[&[script], &args[..]].concat());
    let own = own.succeeds(2, &[&args[..], &["--device", "cpu"]].concat());
    assert_prints_alike(&own.stdout(), &python.stdout(), &["Epoch: "], 1e-3);
}

#[test]
fn goes_on_in_the_middle_of_an_epoch_on_another_number_of_ranks() {
    let args = ["--device", "cpu", "--epochs", "2", "--samples", "96", "--held-out", "8", "--save-every-steps", "2"];
    let mut job = Job::with(lab(), &[kill(1, 1, 4)]);
    assert!(!job.attempt(2, &args).succeeded());
    let resumed = job.succeeds(3, &args).stdout();
    assert!(resumed.contains("Resuming training from snapshot at Epoch 1, step 4"), "{resumed}");
    assert_eq!(losses(&resumed).len(), 1, "{resumed}");
}

#[test]
fn refuses_texts_and_sizes_that_make_no_model() {
    let mut job = Job::new(lab());
    fs::write(job.path("short.txt"), "a").unwrap();
    for (args, says) in [
        (&["--data", "short.txt", "--characters"][..], "nothing to predict"),
        (&["--data", "nowhere.txt"], "nowhere.txt"),
        (&["--vocabulary", "100"], "too small for byte pairs"),
        (&["--window", "0"], "windows of 0 tokens"),
        (&["--heads", "5"], "do not divide a width"),
    ] {
        let ended = job.attempt(1, args);
        assert!(!ended.succeeded() && ended.stderr().contains(says), "{args:?}: {}", ended.stderr());
    }
}
