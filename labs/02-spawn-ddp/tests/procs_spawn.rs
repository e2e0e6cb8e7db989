//! Tests of lab 02's programs: the two small ones, training on MNIST, and failures: the error, the exit code, and that no process is left.

#![allow(clippy::unwrap_used)] // a test may

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::sync::mpsc::channel;

use assert_cmd::assert::{Assert, OutputAssertExt};
use assert_cmd::cargo::cargo_bin;
use lockstep::data::{Digits, real_data_dir};
use lockstep::events::{self, Event};
use lockstep_process::watchdog::{drain, output, receive};
use lockstep_testkit::python::assert_prints_alike;
use lockstep_testkit::{Job, KillOnDrop, margin, names, numbers, text};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// What each rank wrote, by rank.
fn events(job: &Job) -> BTreeMap<usize, Vec<Event>> {
    let events = |all: Vec<(u32, Event)>| all.into_iter().map(|(_, event)| event).collect();
    job.events().into_iter().map(|(rank, all)| (rank, events(all))).collect()
}

/// Runs the program to its end.
fn run(program: &Path, args: &[&str]) -> Assert {
    Job::new(program).alone(args).assert()
}

fn stdout(run: &Assert) -> String {
    text(&run.get_output().stdout)
}

fn stderr(run: &Assert) -> String {
    text(&run.get_output().stderr)
}

fn toy_model() -> &'static Path {
    cargo_bin!("lab-02-toy-model")
}

fn linear_regression() -> &'static Path {
    cargo_bin!("lab-02-linear-regression")
}

#[test]
fn one_step_on_different_data_leaves_the_same_weights_on_any_number_of_ranks() {
    for nprocs in [1, 4] {
        let run = run(toy_model(), &["--nprocs", &nprocs.to_string()]).success();
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
        let run = run(linear_regression(), &args).success();
        let far = numbers(&stdout(&run), "[rank 0] Epoch 5 | distance from the true line: ");
        assert_eq!(far.len(), 1, "{}", stdout(&run));
        margin::below(format!("distance from the true line, ranks: {nprocs}"), far[0], 0.05);
    }
}

#[test]
fn all_ranks_have_the_same_line_after_each_epoch_learned_from_every_sample() {
    let job = Job::new(linear_regression());
    let run = job.alone(&["--samples", "101", "--epochs", "3"]).assert().success();
    let of = |rank: u32| -> Vec<f64> {
        let epochs = 0..3;
        let label = |epoch| format!("[rank {rank}] Epoch {epoch} | distance from the true line: ");
        epochs.flat_map(|epoch: u32| numbers(&stdout(&run), &label(epoch))).collect()
    };
    assert_eq!((of(0).len(), of(0)), (3, of(1)));

    let samples = |event| if let Event::Samples { epoch: 0, indices } = event { Some(indices) } else { None };
    let mut seen: Vec<u64> = events(&job).into_values().flatten().filter_map(samples).flatten().collect();
    seen.sort_unstable();
    assert_eq!(seen.len(), 102, "one sample pads the last turn");
    seen.dedup();
    assert_eq!(seen, (0..101).collect::<Vec<u64>>());
}

#[test]
fn the_toy_models_losses_are_those_of_the_python_script() {
    let Some(twin) = Job::in_python("lab 02 and its Python script") else { return };
    let python = twin.alone(&[concat!(env!("CARGO_MANIFEST_DIR"), "/spawn_ddp.py"), "--nprocs", "3"]);
    assert!(python.status.success(), "{}", String::from_utf8_lossy(&python.stderr));
    let own = run(toy_model(), &["--nprocs", "3", "--device", "cpu"]).success();
    assert_prints_alike(&stdout(&own), &text(&python.stdout), &["Running ", "loss "], 1e-3);
}

fn mnist() -> &'static Path {
    cargo_bin!("lab-02-spawn-ddp")
}

/// Accuracy and number of samples of each evaluation of a rank.
fn evaluations(events: &[Event]) -> Vec<(f64, u64)> {
    let of = |event: &Event| match event {
        Event::Eval { accuracy, samples, .. } => Some((*accuracy, *samples)),
        _ => None,
    };
    events.iter().filter_map(of).collect()
}

#[test]
fn more_ranks_than_digits_train_without_a_hang() {
    let job = Job::new(mnist());
    let args = ["--nprocs", "3", "--samples", "2", "--epochs", "1", "--weights", "weights", "--device", "cpu"];
    job.alone(&args).assert().success();
    job.weights(3);
    assert_eq!(evaluations(&events(&job)[&2]), evaluations(&events(&job)[&0]));
}

#[test]
fn learns_drawn_digits() {
    let job = Job::new(mnist());
    let seed = margin::seed(0).to_string();
    let args = ["--samples", "1500", "--epochs", "3", "--batch-size", "16", "--device", "cpu", "--seed", &seed];
    let run = job.alone(&args).assert().success();
    let accuracy = evaluations(&events(&job)[&0]);
    margin::below("errors after three epochs", 1.0 - accuracy[2].0, 0.2);
    assert!(stdout(&run).contains(&format!("Epoch: 2, Accuracy: {:.4}, Loss: ", accuracy[2].0)));
}

#[test]
fn learns_the_real_digits_to_96_percent() {
    let Some(data) = real_data_dir().map(|data| data.join("mnist")).filter(|dir| dir.is_dir()) else {
        println!("not verified here: accuracy on the real MNIST; set LOCKSTEP_DATA to a folder that has mnist/");
        return;
    };
    let job = Job::new(mnist());
    let (data, seed) = (data.to_str().unwrap(), margin::seed(0).to_string());
    job.alone(&["--data", data, "--epochs", "4", "--device", "cpu", "--seed", &seed]).assert().success();
    let evaluated = evaluations(&events(&job)[&0]);
    let best = evaluated.iter().map(|(accuracy, _)| *accuracy).fold(0.0, f64::max);
    margin::below(format!("least errors on {} held-out digits", evaluated[0].1), 1.0 - best, 0.04);
}

#[test]
fn names_a_data_folder_that_does_not_exist() {
    let run = run(mnist(), &["--data", "absent"]).code(1);
    let message = stderr(&run);
    assert!(message.starts_with("error: process ") && message.contains("find the train images in absent"), "{message}");
    assert!(message.contains("that folder does not exist, check the path"), "{message}");
}

#[test]
fn names_the_file_that_is_missing() {
    let job = Job::new(mnist());
    Digits::write_idx(&job.path("digits"), 0, 20, 10).unwrap();
    std::fs::remove_file(job.path("digits/t10k-labels-idx1-ubyte.gz")).unwrap();
    let message = stderr(&job.alone(&["--data", "digits"]).assert().code(1));
    assert!(message.contains("find the t10k labels in digits"), "{message}");
}

#[test]
fn names_the_file_that_is_cut_short() {
    let job = Job::new(mnist());
    Digits::write_idx(&job.path("digits"), 0, 20, 10).unwrap();
    let broken = job.path("digits/train-images-idx3-ubyte.gz");
    let bytes = std::fs::read(&broken).unwrap();
    std::fs::write(&broken, &bytes[..bytes.len() / 2]).unwrap();
    let message = stderr(&job.alone(&["--data", "digits"]).assert().code(1));
    assert!(message.contains("digits/train-images-idx3-ubyte.gz"), "{message}");
}

#[test]
fn trains_on_files_as_well_as_on_drawn_digits() {
    let job = Job::new(mnist());
    Digits::write_idx(&job.path("digits"), 0, 20, 10).unwrap();
    job.alone(&["--data", "digits", "--epochs", "1", "--nprocs", "1", "--device", "cpu"]).assert().success();
}

#[test]
fn rejects_to_run_under_a_launcher() {
    let job = Job::new(mnist());
    let mut command = job.command(mnist());
    command.env("RANK", "1").env("WORLD_SIZE", "2");
    let output = output(command);
    let message = text(&output.stderr);
    assert_eq!((output.status.code(), output.stdout), (Some(2), Vec::new()), "{message}");
    assert!(message.starts_with("error: cannot spawn under a launcher (RANK=1, WORLD_SIZE=2)"), "{message}");
    assert!(names(&job.path("")).is_empty());
}

#[test]
fn rejects_bad_arguments_with_exit_code_2() {
    for (binary, args, named) in [
        (mnist(), ["--nprocs", "0"], "cannot spawn 0 processes: ask for 1 or more"),
        (mnist(), ["--nprocs", "100000"], "cannot spawn 100000 processes"),
        (mnist(), ["--batch-size", "0"], "'0' for '--batch-size <BATCH_SIZE>'"),
        (mnist(), ["--samples", "0"], "'0' for '--samples <SAMPLES>'"),
        (mnist(), ["--data", ""], "--data"),
        (toy_model(), ["--nprocs", "0"], "cannot spawn 0 processes"),
        (toy_model(), ["--nprocs", "two"], "'two' for '--nprocs <NPROCS>'"),
        (linear_regression(), ["--batch-size", "0"], "'0' for '--batch-size <BATCH_SIZE>'"),
        (linear_regression(), ["--samples", "0"], "'0' for '--samples <SAMPLES>'"),
    ] {
        let message = stderr(&run(binary, &args).code(2).stdout(""));
        assert!(message.contains(named), "{message}");
    }
}

#[test]
fn names_weights_that_it_cannot_write() {
    let job = Job::new(mnist());
    std::fs::write(job.path("file"), "").unwrap();
    let args = ["--samples", "8", "--epochs", "1", "--weights", "file/weights", "--device", "cpu"];
    let message = stderr(&job.alone(&args).assert().code(2));
    assert!(message.contains("file is a file, and a folder is meant"), "{message}");
    assert_eq!(names(&job.path("")), ["file"]);
}

/// A run that does not end by itself, after both of its ranks have started to train.
fn endless(job: &Job) -> (KillOnDrop, impl Read + Send + use<>) {
    let mut command = job.command(job.program());
    command.args(["--samples", "64", "--epochs", "1000000", "--device", "cpu"]).process_group(0);
    let mut child = KillOnDrop(command.spawn().unwrap());
    let mut lines = BufReader::new(child.0.stdout.take().unwrap());
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let (mut line, mut ranks) = (String::new(), [false; 2]);
        while ranks != [true; 2] && lines.read_line(&mut line).unwrap() > 0 {
            (0..2).for_each(|rank| ranks[rank] |= line.contains(&format!("[rank {rank}] Epoch 1")));
        }
        // The receiver is gone if it timed out.
        let _ = sender.send((ranks, lines));
    });
    let (ranks, rest) = receive(&receiver).expect("training did not begin").unwrap();
    assert_eq!(ranks, [true; 2], "the run ended by itself");
    (child, rest)
}

/// Waits until the program and all its workers have ended. Returns the signal that ended it and its stderr.
fn end_of(mut child: KillOnDrop, stdout: impl Read + Send + 'static) -> (Option<i32>, String) {
    let stderr = drain(child.0.stderr.take().unwrap());
    receive(&drain(stdout)).expect("a worker is left");
    let message = receive(&stderr).expect("a worker is left").unwrap();
    (child.0.wait().unwrap().signal(), String::from_utf8(message).unwrap())
}

fn id_of(child: &KillOnDrop) -> Pid {
    Pid::from_child(&child.0)
}

#[test]
fn leaves_nothing_after_ctrl_c() {
    let job = Job::new(mnist());
    let (child, stdout) = endless(&job);
    // As a terminal does: to all processes in the foreground.
    kill_process_group(id_of(&child), Signal::INT).unwrap();
    end_of(child, stdout);
    assert_eq!(names(&job.path("")), ["events"]);
}

#[test]
fn leaves_nothing_after_sigterm() {
    let job = Job::new(mnist());
    let (child, stdout) = endless(&job);
    kill_process(id_of(&child), Signal::TERM).unwrap();
    assert_eq!(end_of(child, stdout).0, Some(Signal::TERM.as_raw()));
    assert_eq!(names(&job.path("")), ["events"]);
}

#[test]
fn names_the_rank_that_was_killed_and_stops_the_other() {
    let job = Job::new(mnist());
    let (child, stdout) = endless(&job);
    let started = |event: Event| if let Event::Start { pid, .. } = event { Some(pid) } else { None };
    let log = events::read(&job.path("events/rank-1.jsonl")).unwrap();
    let pid = log.records.into_iter().find_map(|record| started(record.event)).unwrap();
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), Signal::KILL).unwrap();
    let (_, message) = end_of(child, stdout);
    assert!(message.starts_with("error: process 1 terminated with signal SIGKILL"), "{message}");
}
