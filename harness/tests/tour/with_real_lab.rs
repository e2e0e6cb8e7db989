//! The tour with the lab that trains, where it was built; a small run, and the same verdicts.

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;

use crate::signals::Running;
use crate::site::{LAB, LIMIT, json};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("proves_a_real_run", proves_real_run),
    ("proves_a_real_run_of_three_ranks_on_a_set_that_does_not_divide", proves_uneven_run),
    ("leaves_no_rank_behind_when_it_is_killed", leaves_no_rank),
];

/// The tour beside the real lab; `None`, with a word about it, where that was not built.
fn tour(args: &[&str]) -> Option<Command> {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_lockstep"));
    let lab: &Path = &program.with_file_name(LAB);
    if !lab.exists() {
        eprintln!("not verified here: {} is not built (`cargo build` builds it)", lab.display());
        return None;
    }
    let mut command = Command::new(program);
    command.arg("tour").args(args).env("OMP_NUM_THREADS", "1");
    Some(command)
}

fn report(args: &[&str]) -> Option<serde_json::Value> {
    let mut command = tour(args)?;
    command.arg("--json");
    Some(json(&assert_cmd::Command::from_std(command).timeout(LIMIT).assert().success()))
}

fn proves_real_run() {
    let Some(report) = report(&["--samples", "256", "--epochs", "2"]) else { return };
    assert_eq!(report["verdict"], "passed", "{report:#}");
    assert!(report["findings"][0]["evidence"].as_str().unwrap().starts_with("8 tensors, 105,866 values on each of 2"));
    assert_eq!(report["runs"][0]["epochs"].as_array().unwrap().len(), 2);
}

fn proves_uneven_run() {
    let Some(report) = report(&["--samples", "305", "--epochs", "2", "--nprocs", "3"]) else { return };
    assert_eq!(report["verdict"], "passed", "{report:#}");
    let told = |index: usize| report["findings"][index]["evidence"].as_str().unwrap();
    assert!(told(2).contains("305 samples on 3 ranks; 1 repeat an epoch is the sampler's padding"), "{}", told(2));
    assert!(told(1).contains("the losses of the first 3 steps"), "{}", told(1));
}

fn leaves_no_rank() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut command) = tour(&["--samples", "64", "--epochs", "10000"]) else { return };
    command.env("TMPDIR", folder.path());
    let mut tour = Running::start(command);
    tour.await_line("[rank 1] Epoch 3 ");
    tour.ended_by(Signal::KILL);
}
