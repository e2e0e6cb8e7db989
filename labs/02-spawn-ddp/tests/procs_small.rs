//! The two small programs of lab 02: the toy model and linear regression.

#![allow(clippy::unwrap_used)] // a test may

mod common;

use std::collections::BTreeSet;
use std::path::Path;

use assert_cmd::cargo::cargo_bin;
use common::{Lab, stderr, stdout};
use lockstep::events::Event;
use lockstep_testkit::python::assert_prints_alike;
use lockstep_testkit::{Job, margin};

fn toy_model() -> &'static Path {
    cargo_bin!("lab-02-toy-model")
}

fn linear_regression() -> &'static Path {
    cargo_bin!("lab-02-linear-regression")
}

/// The number after `label` in each line that contains it.
fn numbers(text: &str, label: &str) -> Vec<f64> {
    let number = |line: &str| line.split_once(label).map(|(_, rest)| rest.trim().parse().unwrap());
    text.lines().filter_map(number).collect()
}

#[test]
fn one_step_on_different_data_leaves_the_same_weights_on_any_number_of_ranks() {
    for nprocs in [1, 4] {
        let run = Lab::new().run(toy_model(), &["--nprocs", &nprocs.to_string()]).success();
        let text = stdout(&run);
        assert_eq!(numbers(&text, "weights differ between ranks by "), vec![0.0; nprocs]);
        let losses = text.lines().filter_map(|line| Some(line.split_once(": loss ")?.1.split_once(',')?.0));
        assert_eq!(losses.collect::<BTreeSet<_>>().len(), nprocs, "{text}");
    }
}

#[test]
fn learns_the_true_line_on_one_and_three_ranks() {
    let seed = margin::seed(0).to_string();
    for nprocs in ["1", "3"] {
        let args = ["--nprocs", nprocs, "--epochs", "6", "--seed", &seed];
        let run = Lab::new().run(linear_regression(), &args).success();
        let far = numbers(&stdout(&run), "[rank 0] Epoch 5 | distance from the true line: ");
        assert_eq!(far.len(), 1, "{}", stdout(&run));
        margin::below(format!("distance from the true line, ranks: {nprocs}"), far[0], 0.05);
    }
}

#[test]
fn all_ranks_have_the_same_line_after_each_epoch_learned_from_every_sample() {
    let lab = Lab::new();
    let run = lab.run(linear_regression(), &["--samples", "101", "--epochs", "3"]).success();
    let of = |rank: u32| -> Vec<f64> {
        let epochs = 0..3;
        let label = |epoch| format!("[rank {rank}] Epoch {epoch} | distance from the true line: ");
        epochs.flat_map(|epoch: u32| numbers(&stdout(&run), &label(epoch))).collect()
    };
    assert_eq!((of(0).len(), of(0)), (3, of(1)));

    let samples = |event| if let Event::Samples { epoch: 0, indices } = event { Some(indices) } else { None };
    let mut seen: Vec<u64> = lab.events().into_values().flatten().filter_map(samples).flatten().collect();
    seen.sort_unstable();
    assert_eq!(seen.len(), 102, "one sample pads the last turn");
    seen.dedup();
    assert_eq!(seen, (0..101).collect::<Vec<u64>>());
}

#[test]
fn rejects_bad_arguments_with_exit_code_2() {
    for (binary, args, named) in [
        (toy_model(), ["--nprocs", "0"], "cannot spawn 0 processes"),
        (toy_model(), ["--nprocs", "two"], "'two' for '--nprocs <NPROCS>'"),
        (linear_regression(), ["--batch-size", "0"], "'0' for '--batch-size <BATCH_SIZE>'"),
        (linear_regression(), ["--samples", "0"], "'0' for '--samples <SAMPLES>'"),
    ] {
        let run = Lab::new().run(binary, &args).code(2).stdout("");
        assert!(stderr(&run).contains(named), "{}", stderr(&run));
    }
}

#[test]
fn the_toy_models_losses_are_those_of_the_python_script() {
    let Some(twin) = Job::in_python("lab 02 and its Python script") else { return };
    let python = twin.alone(&[concat!(env!("CARGO_MANIFEST_DIR"), "/spawn_ddp.py"), "--nprocs", "3"]);
    assert!(python.status.success(), "{}", String::from_utf8_lossy(&python.stderr));
    let own = Lab::new().run(toy_model(), &["--nprocs", "3", "--device", "cpu"]).success();
    let python = String::from_utf8(python.stdout).unwrap();
    assert_prints_alike(&stdout(&own), &python, &["Running ", "loss "], 1e-3);
}
