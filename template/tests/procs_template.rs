//! What a copy of the template promises, for each kind of data: it learns alone, resumes after a kill with the same bits, and has the same
//! losses with each way to divide it. That of points has the losses of its Python script.

#![allow(clippy::unwrap_used)] // a test may

use std::fs;
use std::path::Path;

use lockstep_testkit::{Job, kill, margin};

// The formatter looks for a link's modules beside its target. Listed here so that it finds them.
#[cfg(any())]
#[path = "../src"]
mod tasks {
    #[path = "images/task.rs"]
    mod images;
    #[path = "sequences/task.rs"]
    mod sequences;
    #[path = "table/task.rs"]
    mod table;
    #[path = "tokens/task.rs"]
    mod tokens;
}

/// For all runs. Weights are in the job's folder.
const ARGS: [&str; 6] = ["--device", "cpu", "--snapshots", "snapshots", "--weights", "all.safetensors"];

/// Each program, and the limit of its loss on what is held out after all epochs.
fn templates() -> [(&'static Path, f64); 5] {
    [
        (assert_cmd::cargo::cargo_bin!("lockstep-template"), 0.4),
        (assert_cmd::cargo::cargo_bin!("lockstep-template-tokens"), 1.9),
        (assert_cmd::cargo::cargo_bin!("lockstep-template-images"), 1.0),
        (assert_cmd::cargo::cargo_bin!("lockstep-template-table"), 0.3),
        (assert_cmd::cargo::cargo_bin!("lockstep-template-sequences"), 0.9),
    ]
}

/// The losses of all epochs.
fn losses(printed: &str) -> Vec<f64> {
    let number = |line: &str| line.split_once("Loss: ")?.1.split([',', ' ']).next()?.parse().ok();
    printed.lines().filter(|line| line.contains("Epoch: ")).filter_map(number).collect()
}

fn with<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&ARGS[..], more].concat()
}

/// Alone, with the program's own number of epochs.
#[test]
fn one_device_learns_each_kind_of_data() {
    for (program, limit) in templates() {
        let ended = Job::new(program).attempt(1, &ARGS);
        assert!(ended.succeeded(), "{}", ended.stderr());
        let loss = *losses(&ended.stdout()).last().unwrap();
        margin::below(format!("loss of {}", program.display()), loss, limit);
    }
}

/// Two ranks of three epochs: undisturbed, and with rank 1 killed in the last. The snapshot after the second may not have been complete
/// then, but the one after the first was.
#[test]
fn a_killed_run_resumes_with_the_same_bits_whatever_is_divided() {
    for (at, (program, _)) in templates().into_iter().enumerate() {
        // All three with tokens, whose model has several units, and with an LSTM.
        for wrap in if [1, 4].contains(&at) { &["ddp", "zero", "fsdp"][..] } else { &["ddp"] } {
            let args = with(&["--epochs", "3", "--wrap", wrap]);
            let mut job = Job::new(program);
            let all = losses(&job.succeeds(2, &args).stdout());
            let expected = fs::read(job.path("all.safetensors")).unwrap();
            let mut job = Job::with(program, &[kill(1, 2, 3)]);
            assert!(!job.attempt(2, &args).succeeded());
            let last = losses(&job.succeeds(2, &args).stdout());
            assert!(all.len() == 3 && (1..3).contains(&last.len()) && all.ends_with(&last), "{all:?} {last:?}");
            let resumed = fs::read(job.path("all.safetensors")).unwrap();
            assert!(expected == resumed, "{} differs with {wrap}", program.display());
        }
    }
}

/// The first program has no dropout, the second is a GPT with units.
#[test]
fn virtual_ranks_end_with_the_same_bits_whatever_number_of_ranks_is_left() {
    for (program, wrap) in [(templates()[0].0, "ddp"), (templates()[1].0, "zero")] {
        let args = with(&["--epochs", "3", "--wrap", wrap, "--virtual-ranks", "4", "--clip", "1"]);
        let run = |world| {
            let mut job = Job::new(program);
            let losses = losses(&job.succeeds(world, &args).stdout());
            (losses, fs::read(job.path("all.safetensors")).unwrap())
        };
        let one = run(1);
        assert!(one == run(4), "{} differs on four ranks", program.display());
        let mut job = Job::with(program, &[kill(1, 2, 1)]);
        assert!(!job.attempt(3, &args).succeeded());
        job.succeeds(2, &args);
        let resumed = fs::read(job.path("all.safetensors")).unwrap();
        assert!(resumed == one.1, "{} differs after three ranks became two", program.display());
    }
    let args = with(&["--wrap", "fsdp", "--virtual-ranks", "4"]);
    let refused = Job::new(templates()[0].0).attempt(1, &args).stderr();
    assert!(refused.contains("--virtual-ranks is for --wrap ddp and zero: fsdp divides each parameter"), "{refused}");
}

/// The rows of the curves without the rates: epoch, step, loss, learning rate, held-out loss and accuracy.
fn curves(job: &Job) -> Vec<Vec<String>> {
    let mut reader = csv::Reader::from_path(job.path("curves.csv")).unwrap();
    let rows = reader.records().map(|row| row.unwrap().iter().map(str::to_owned).collect());
    let without_rate = |mut row: Vec<String>| {
        row.remove(4);
        row
    };
    rows.map(without_rate).collect()
}

/// The batches of all ranks together are the same, and sequences are padded differently.
#[test]
fn sequences_stop_at_the_same_epoch_with_the_same_curves_on_any_number_of_ranks_and_after_a_kill() {
    let program = templates()[4].0;
    let args = |batch| with(&["--batch-size", batch, "--clip", "1", "--patience", "1", "--curves", "curves.csv"]);
    let [one, two, three] = [(1, "30"), (2, "15"), (3, "10")].map(|(ranks, batch)| {
        let mut job = Job::new(program);
        let printed = job.succeeds(ranks, &args(batch)).stdout();
        assert!(printed.contains("Stops before epoch"), "{printed}");
        curves(&job)
    });
    let held_out = |rows: &[Vec<String>]| -> Vec<f64> { rows.iter().filter_map(|row| row[4].parse().ok()).collect() };
    for (rows, ranks) in [(&two, 2), (&three, 3)] {
        assert_eq!(rows.len(), one.len(), "on {ranks} ranks");
        for (loss, expected) in held_out(rows).into_iter().zip(held_out(&one)) {
            assert!((loss - expected).abs() < 1e-3, "on {ranks} ranks: {loss}, on one {expected}");
        }
    }
    let mut job = Job::with(program, &[kill(1, 2, 3)]);
    assert!(!job.attempt(2, &args("15")).succeeded());
    job.succeeds(2, &args("15"));
    assert_eq!(curves(&job), two);
}

#[test]
fn each_way_to_divide_has_the_losses_of_copies() {
    for (program, _) in templates() {
        let [ddp, zero, fsdp] = ["ddp", "zero", "fsdp"].map(|wrap| {
            let ended = Job::new(program).succeeds(2, &with(&["--epochs", "1", "--wrap", wrap]));
            losses(&ended.stdout())[0]
        });
        assert_eq!(ddp, zero, "{}", program.display());
        // The sums of a step are made in another order; a step with other gradients is far from this.
        assert!((ddp - fsdp).abs() < 1e-3 * ddp, "{}: {ddp}, fully sharded {fsdp}", program.display());
    }
}

#[test]
fn files_are_read_and_faults_in_them_named() {
    let [_, (tokens, _), (images, _), (table, _), _] = templates();
    let short = |data: &'static str| with(&["--epochs", "1", "--data", data]);
    let mut job = Job::new(table);
    let rows: String = (0..40).map(|number| format!("{number}, {}, 5\n", number * 3)).collect();
    fs::write(job.path("good.csv"), format!("a, b, c\n{rows}")).unwrap();
    job.succeeds(1, &[&short("good.csv")[..], &["--target", "b"]].concat());
    let refused = |job: &mut Job, args: &[&str]| {
        let ended = job.attempt(1, args);
        assert!(!ended.succeeded());
        ended.stderr()
    };
    let why = refused(&mut job, &[&short("good.csv")[..], &["--target", "d"]].concat());
    assert!(why.contains("good.csv has no column \"d\" to predict; its columns are a, b, c"), "{why}");
    let why = refused(&mut job, &short("none.csv"));
    assert!(why.contains("cannot read none.csv"), "{why}");
    fs::write(job.path("nameless.csv"), &rows).unwrap();
    let why = refused(&mut job, &short("nameless.csv"));
    assert!(why.contains("nameless.csv has only numbers in its first line"), "{why}");
    fs::write(job.path("bad.csv"), format!("a,b,c\n1,x,2\n{rows}")).unwrap();
    let why = refused(&mut job, &short("bad.csv"));
    assert!(why.contains("bad.csv, line 2, column b: \"x\" is not a number"), "{why}");
    for (sign, name) in [(";", "semicolons"), ("\t", "tabs"), ("|", "bars"), (" ", "spaces")] {
        fs::write(job.path("others.csv"), format!("a, b, c\n{rows}").replace(", ", sign)).unwrap();
        let why = refused(&mut job, &short("others.csv"));
        assert!(why.contains(&format!("others.csv has {name} between its columns: save it with commas")), "{why}");
    }
    fs::write(job.path("uneven.csv"), format!("a,b,c\n{rows}1,2\n")).unwrap();
    let why = refused(&mut job, &short("uneven.csv"));
    assert!(why.contains("cannot read uneven.csv") && why.contains("42"), "{why}");

    let mut job = Job::new(tokens);
    fs::write(job.path("text.txt"), "Ranks meet, and send. ".repeat(200)).unwrap();
    let written = job.succeeds(1, &[&short("text.txt")[..], &["--vocabulary", "260"]].concat()).stdout();
    assert!(written.contains("It writes:"), "{written}");
    let why = refused(&mut Job::new(images), &short("nowhere"));
    assert!(why.contains("nowhere"), "{why}");
}

#[test]
fn two_ranks_have_the_losses_of_two_ranks_in_python() {
    let Some(mut twin) = Job::in_python("the template and its Python script") else { return };
    let twin = twin.succeeds(2, &[concat!(env!("CARGO_MANIFEST_DIR"), "/train.py"), "--epochs", "2"]);
    let own = Job::new(templates()[0].0).succeeds(2, &with(&["--epochs", "2"]));
    let (own, twin) = (losses(&own.stdout()), losses(&twin.stdout()));
    assert_eq!((own.len(), twin.len()), (2, 2));
    for (loss, expected) in own.into_iter().zip(twin) {
        assert!((loss - expected).abs() < 1e-3, "{loss} and {expected} in Python");
    }
}
