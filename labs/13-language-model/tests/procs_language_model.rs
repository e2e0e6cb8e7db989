//! What lab 13 promises besides what `lockstep verify` checks: it learns from the book's pages, has the losses of its Python script, and goes
//! on in the middle of an epoch on another number of ranks.

#![allow(clippy::unwrap_used)] // a test may

use std::fs;
use std::path::Path;

use lockstep_contract::fault::{Act, SavePhase};
use lockstep_testkit::python::assert_prints_alike;
use lockstep_testkit::{Attempt, Job, kill, margin, while_saving};

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
    let mut job = Job::with(lab(), &[while_saving(1, 4, SavePhase::Named, &[Act::Signal(9)])]);
    assert!(!job.attempt(2, &args).succeeded());
    let resumed = job.succeeds(3, &args).stdout();
    assert!(resumed.contains("Resuming training from snapshot at Epoch 1, step 4"), "{resumed}");
    assert_eq!(losses(&resumed).len(), 1, "{resumed}");
}

/// With dropout, micro-batches, clipping and a schedule. An epoch has 6 steps of 4 virtual ranks.
#[test]
fn virtual_ranks_end_with_the_same_bits_whatever_number_of_ranks_is_left() {
    let sizes = ["--device", "cpu", "--samples", "96", "--batch-size", "4", "--held-out", "8", "--width", "32"];
    let more = ["--epochs", "2", "--save-every-steps", "2", "--dropout", "0.1", "--virtual-ranks", "4"];
    let args = [&sizes[..], &more, &["--weights", "weights", "--write", "10"]].concat();
    let mut alone = Job::new(lab());
    let of_rank_0 = |attempt: Attempt| String::from_utf8(attempt.0[0].stdout.clone()).unwrap();
    let printed = of_rank_0(alone.succeeds(1, &args));
    let mut job = Job::with(lab(), &[kill(2, 0, 3), kill(1, 1, 1)]);
    for world in [3, 2] {
        let attempt = job.attempt(world, &args);
        assert!(!attempt.succeeded() && !attempt.stderr().contains("differ in bits"), "{}", attempt.stderr());
    }
    let last = of_rank_0(job.succeeds(4, &args));
    assert_eq!(job.injected(), 2);
    assert!(job.weights(4) == alone.weights(1), "the weights have other bits");
    let written = |printed: &str| printed.split_once("It writes:").unwrap().1.to_owned();
    assert_eq!(written(&last), written(&printed));
    assert_eq!(losses(&last).last(), losses(&printed).last());
    // Dropout does something, and it is the virtual rank's.
    let without: Vec<&str> = args.iter().map(|arg| if *arg == "0.1" { "0" } else { arg }).collect();
    let mut job = Job::new(lab());
    job.succeeds(1, &without);
    assert!(job.weights(1) != alone.weights(1), "dropout changes nothing");
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
        (&["--dropout", "1"], "a dropout of 1: choose a part from 0 to below 1"),
    ] {
        let ended = job.attempt(1, args);
        assert!(!ended.succeeded() && ended.stderr().contains(says), "{args:?}: {}", ended.stderr());
    }
}
