//! Signals that ask for a snapshot: whichever ranks receive one, and whenever, all ranks act after the same step.

#![allow(clippy::unwrap_used)] // a test may

mod common;

use std::fs;
use std::os::unix::process::ExitStatusExt;

use common::{job_with, lab, new_job, quick, undisturbed};
use lockstep::events::Event;
use lockstep_contract::fault::{Act, Point, RankFault};
use lockstep_contract::snapshot_request::{LAUNCHER, SAVE, SAVE_AND_END, SAVED, SNAPSHOT_ON};
use lockstep_testkit::{Attempt, Job, Running};
use rustix::process::{Pid, Signal, kill_process};

/// A rank gets a signal after a step, before it looks for one.
fn signal(rank: usize, epoch: u64, step: u64, signal: i32) -> RankFault {
    let at = Point::Step { epoch, step };
    RankFault { name: format!("signal-{signal}-{rank}-{epoch}-{step}"), rank, at, acts: vec![Act::Signal(signal)] }
}

fn assert_saved(attempt: &Attempt) {
    for rank in &attempt.0 {
        assert_eq!(rank.status.code(), Some(SAVED.into()), "{}{}", attempt.stdout(), attempt.stderr());
    }
    assert!(attempt.stdout().contains("A signal asked for a snapshot and the end: epoch "), "{}", attempt.stdout());
    assert!(!attempt.stderr().contains("error"), "the end is no error: {}", attempt.stderr());
}

/// Where training would continue from the snapshots that were saved, in order.
fn saved(job: &Job) -> Vec<(u64, u64)> {
    let position = |(_, event): &(u32, Event)| match event {
        Event::Snapshot { epoch, step, .. } => Some((*epoch, *step)),
        _ => None,
    };
    job.events()[&0].iter().filter_map(position).collect()
}

/// Rank 0 gets one in the first attempt, and rank 1 in the second.
#[test]
fn a_signal_to_any_one_rank_saves_and_ends_all_ranks_after_the_same_step() {
    let args = quick("mlp", "2");
    let mut job = job_with(&[signal(0, 0, 3, SAVE_AND_END), signal(1, 0, 6, SAVE_AND_END)]);
    assert_saved(&job.attempt(2, &args));
    assert_eq!(saved(&job), [(0, 3), (0, 5)], "a signal after step 3 is noted there and granted after step 4");
    assert_saved(&job.attempt(2, &args));
    assert_eq!(saved(&job)[2..], [(0, 6), (0, 8)], "one after step 6 is granted after step 7");
    assert_eq!(job.finish(2, &args), 1);
    assert!(job.weights(2) == undisturbed(2, &args), "the weights have other bits");
}

#[test]
fn a_signal_to_any_one_rank_saves_once_and_changes_no_bit() {
    let args = quick("mlp", "2");
    let mut job = job_with(&[signal(0, 0, 3, SAVE), signal(1, 0, 9, SAVE)]);
    assert_eq!(job.finish(2, &args), 1);
    assert_eq!(saved(&job)[..6], [(0, 3), (0, 5), (0, 6), (0, 9), (0, 11), (0, 12)]);
    assert!(job.weights(2) == undisturbed(2, &args), "the weights have other bits");
}

#[test]
fn signals_of_both_kinds_to_several_ranks_at_once_end_the_run_once() {
    let args = quick("mlp", "2");
    let mut job = job_with(&[
        signal(0, 0, 6, SAVE),
        signal(1, 0, 6, SAVE_AND_END),
        signal(2, 0, 6, SAVE),
        signal(2, 0, 7, SAVE_AND_END),
    ]);
    assert_saved(&job.attempt(3, &args));
    assert_eq!(saved(&job), [(0, 3), (0, 6), (0, 8)]);
    assert_eq!(job.finish(3, &args), 1);
    assert!(job.weights(3) == undisturbed(3, &args), "the weights have other bits");
}

#[test]
fn a_process_alone_saves_and_ends_after_the_step_of_the_signal() {
    let args = quick("mlp", "1");
    let job = job_with(&[signal(0, 0, 9, SAVE_AND_END)]);
    assert_eq!(job.alone(&args).status.code(), Some(SAVED.into()));
    assert_eq!(saved(&job), [(0, 3), (0, 6), (0, 9), (0, 10)]);
    assert!(job.alone(&args).status.success());
    assert!(job.weights(1) == undisturbed(1, &args), "the weights have other bits");
}

/// A rank to whose launcher, this process or another one, SIGTERM is a wish. It has begun to train, and would for long.
fn trains(job: &Job, launcher: u32) -> Running {
    let mut command = job.command(lab());
    command.args(quick("mlp", "100000")).env(SNAPSHOT_ON, "SIGTERM").env(LAUNCHER, launcher.to_string());
    let running = Running::start(command);
    let saved = || fs::read_dir(job.path("snapshots")).is_ok_and(|mut entries| entries.next().is_some());
    lockstep_process::watchdog::until(saved).expect("the rank did not save");
    running
}

#[test]
fn sigterm_of_a_scheduler_saves_and_ends_and_that_of_the_launcher_ends_at_once() {
    let me = std::process::id();
    let end = |launcher: u32| {
        let job = new_job();
        let rank = trains(&job, launcher);
        kill_process(Pid::from_raw(rank.pid() as i32).unwrap(), Signal::TERM).unwrap();
        rank.end().status
    };
    assert_eq!(end(me).signal(), Some(15));
    assert_eq!(end(me + 1).code(), Some(SAVED.into()));
}

#[test]
fn a_run_that_sigterm_ended_goes_on_with_the_same_bits() {
    let args = quick("mlp", "8");
    let job = job_with(&[signal(0, 0, 3, 15)]);
    let run = || {
        let mut command = job.command(lab());
        command.args(&args).env(SNAPSHOT_ON, "SIGTERM").env(LAUNCHER, "1").output().unwrap()
    };
    let first = run();
    assert_eq!(first.status.code(), Some(SAVED.into()), "{}", String::from_utf8_lossy(&first.stderr));
    assert!(run().status.success());
    assert!(job.weights(1) == undisturbed(1, &args), "the weights have other bits");
}
