//! The program that the course's answers make together: it learns the same on any number of ranks, and after a stop.

#![allow(clippy::unwrap_used)] // a test may

use std::fs;
use std::path::Path;

use lockstep_testkit::{Job, numbers};

/// What a run printed, on rank 0.
struct Ended(String);

impl Ended {
    fn of(job: &mut Job, ranks: usize, args: &[&str]) -> Self {
        let ended = job.attempt(ranks, args);
        assert!(ended.succeeded(), "{args:?} on {ranks} ranks: {}", ended.stderr());
        Ended(ended.stdout())
    }

    fn perplexity(&self) -> f64 {
        numbers(&self.0, "perplexity ")[0]
    }

    fn written(&self) -> Vec<String> {
        let lines = self.0.lines().map(|line| line.strip_prefix("[default0]:").unwrap_or(line));
        lines.skip_while(|line| *line != "It writes:").map(str::to_owned).collect()
    }
}

fn job() -> Job {
    Job::new(Path::new(env!("CARGO_BIN_EXE_sol-13")))
}

fn alike(one: &[f64], other: &[f64]) {
    assert!(!one.is_empty() && one.len() == other.len(), "{one:?}, {other:?}");
    assert!(one.iter().zip(other).all(|(one, other)| (one - other).abs() <= 2e-4), "{one:?}, {other:?}");
}

#[test]
fn learns_the_same_on_any_number_of_ranks_and_with_divided_windows() {
    let on = |ranks, args: &[&str]| Ended::of(&mut job(), ranks, &[&["--windows", "328"], args].concat());
    let one = on(1, &[]);
    assert!(one.0.contains("windows: 10496 of 10496 characters are learned"), "{}", one.0);
    let losses = numbers(&one.0, "loss ");
    assert!(one.perplexity() < 30.0, "guessing is 101: {}", one.0);
    for other in [on(3, &[]), on(2, &["--context"])] {
        alike(&losses, &numbers(&other.0, "loss "));
        alike(&numbers(&one.0, "norm "), &numbers(&other.0, "norm "));
        assert_eq!(one.perplexity(), other.perplexity());
    }
}

/// Which tokens find no place depends on how the batch is divided, so losses differ from one rank's.
#[test]
fn learns_with_experts_on_two_ranks() {
    let two = Ended::of(&mut job(), 2, &["--windows", "328", "--experts"]);
    assert!(two.perplexity() < 30.0, "guessing is 101: {}", two.0);
    assert!(two.0.contains("characters found no place, in 2 layers on 2 ranks"), "{}", two.0);
}

#[test]
fn goes_on_in_the_middle_of_an_epoch_on_another_number_of_ranks() {
    let args = ["--windows", "640", "--epochs", "1", "--snapshots", "snapshots"];
    let mut job = job();
    let whole = Ended::of(&mut job, 2, &args);
    let folder = job.path("snapshots");
    let mut snapshots: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    snapshots.sort();
    fs::remove_file(snapshots.last().unwrap()).unwrap();
    let rest = Ended::of(&mut job, 3, &args);
    assert!(rest.0.contains("Resuming training from snapshot at Epoch 0, step 20"), "{}", rest.0);
    assert_eq!((whole.perplexity(), whole.written()), (rest.perplexity(), rest.written()));
}

#[test]
fn refuses_ranks_that_do_not_divide_experts_and_windows() {
    for (args, says) in [(&["--experts"], "1, 2 or 4 ranks"), (&["--context"], "cannot be divided into 6 equal chunks")]
    {
        let ended = job().attempt(3, &[&["--windows", "32"], &args[..]].concat());
        assert!(!ended.succeeded() && ended.stderr().contains(says), "{args:?}: {}", ended.stderr());
    }
}
