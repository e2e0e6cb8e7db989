//! Failures of training on MNIST: the error, the exit code, and that no process is left.

#![allow(clippy::unwrap_used)] // a test may

mod common;

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::sync::mpsc::channel;

use assert_cmd::cargo::cargo_bin;
use common::{KillOnDrop, Lab, finish, stderr};
use lockstep::data::Digits;
use lockstep::events::{self, Event};
use lockstep_process::watchdog::{drain, receive};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

fn mnist() -> &'static Path {
    cargo_bin!("lab-02-spawn-ddp")
}

#[test]
fn names_a_data_folder_that_does_not_exist() {
    let run = Lab::new().run(mnist(), &["--data", "absent"]).code(1);
    let message = stderr(&run);
    assert!(message.starts_with("error: process ") && message.contains("find the train images in absent"), "{message}");
    assert!(message.contains("that folder does not exist, check the path"), "{message}");
}

#[test]
fn names_the_file_that_is_missing() {
    let lab = Lab::new();
    Digits::write_idx(&lab.path("digits"), 0, 20, 10).unwrap();
    std::fs::remove_file(lab.path("digits/t10k-labels-idx1-ubyte.gz")).unwrap();
    let message = stderr(&lab.run(mnist(), &["--data", "digits"]).code(1));
    assert!(message.contains("find the t10k labels in digits"), "{message}");
}

#[test]
fn names_the_file_that_is_cut_short() {
    let lab = Lab::new();
    Digits::write_idx(&lab.path("digits"), 0, 20, 10).unwrap();
    let broken = lab.path("digits/train-images-idx3-ubyte.gz");
    let bytes = std::fs::read(&broken).unwrap();
    std::fs::write(&broken, &bytes[..bytes.len() / 2]).unwrap();
    let message = stderr(&lab.run(mnist(), &["--data", "digits"]).code(1));
    assert!(message.contains("digits/train-images-idx3-ubyte.gz"), "{message}");
}

#[test]
fn trains_on_files_as_well_as_on_drawn_digits() {
    let lab = Lab::new();
    Digits::write_idx(&lab.path("digits"), 0, 20, 10).unwrap();
    lab.run(mnist(), &["--data", "digits", "--epochs", "1", "--nprocs", "1", "--device", "cpu"]).success();
}

#[test]
fn rejects_to_run_under_a_launcher() {
    let lab = Lab::new();
    let mut command = lab.command(mnist(), &[]);
    command.env("RANK", "1").env("WORLD_SIZE", "2");
    let output = finish(command);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout), (Some(2), Vec::new()), "{message}");
    assert!(message.starts_with("error: cannot spawn under a launcher (RANK=1, WORLD_SIZE=2)"), "{message}");
    assert!(lab.names().is_empty());
}

#[test]
fn rejects_bad_arguments_with_exit_code_2() {
    for (args, named) in [
        (["--nprocs", "0"], "cannot spawn 0 processes: ask for 1 or more"),
        (["--nprocs", "100000"], "cannot spawn 100000 processes"),
        (["--batch-size", "0"], "'0' for '--batch-size <BATCH_SIZE>'"),
        (["--samples", "0"], "'0' for '--samples <SAMPLES>'"),
        (["--data", ""], "--data"),
    ] {
        let message = stderr(&Lab::new().run(mnist(), &args).code(2).stdout(""));
        assert!(message.contains(named), "{message}");
    }
}

#[test]
fn names_weights_that_it_cannot_write() {
    let lab = Lab::new();
    std::fs::write(lab.path("file"), "").unwrap();
    let args = ["--samples", "8", "--epochs", "1", "--weights", "file/weights", "--device", "cpu"];
    let message = stderr(&lab.run(mnist(), &args).code(2));
    assert!(message.contains("file is a file, and a folder is meant"), "{message}");
    assert_eq!(lab.names(), ["file"]);
}

/// A run that does not end by itself, after both of its ranks have started to train.
fn endless(lab: &Lab) -> (KillOnDrop, impl Read + Send + use<>) {
    let mut command = lab.command(mnist(), &["--samples", "64", "--epochs", "1000000", "--device", "cpu"]);
    let mut child = KillOnDrop(command.process_group(0).spawn().unwrap());
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
    let lab = Lab::new();
    let (child, stdout) = endless(&lab);
    // As a terminal does: to all processes in the foreground.
    kill_process_group(id_of(&child), Signal::INT).unwrap();
    end_of(child, stdout);
    assert_eq!(lab.names(), ["events"]);
}

#[test]
fn leaves_nothing_after_sigterm() {
    let lab = Lab::new();
    let (child, stdout) = endless(&lab);
    kill_process(id_of(&child), Signal::TERM).unwrap();
    assert_eq!(end_of(child, stdout).0, Some(Signal::TERM.as_raw()));
    assert_eq!(lab.names(), ["events"]);
}

#[test]
fn names_the_rank_that_was_killed_and_stops_the_other() {
    let lab = Lab::new();
    let (child, stdout) = endless(&lab);
    let started = |event: Event| if let Event::Start { pid, .. } = event { Some(pid) } else { None };
    let log = events::read(&lab.path("events/rank-1.jsonl")).unwrap();
    let pid = log.records.into_iter().find_map(|record| started(record.event)).unwrap();
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), Signal::KILL).unwrap();
    let (_, message) = end_of(child, stdout);
    assert!(message.starts_with("error: process 1 terminated with signal SIGKILL"), "{message}");
}
