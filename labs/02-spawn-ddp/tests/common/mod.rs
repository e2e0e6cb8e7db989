//! Runs a program of this lab in a private folder.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // each test binary uses its part

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use assert_cmd::assert::{Assert, OutputAssertExt};
use lockstep::events::{self, Event};
#[allow(unused_imports)] // not every program starts its own processes
pub use lockstep_testkit::KillOnDrop;
use lockstep_testkit::clear_launcher;
use tempfile::TempDir;

pub struct Lab(TempDir);

impl Lab {
    pub fn new() -> Self {
        Lab(tempfile::tempdir().unwrap())
    }

    pub fn folder(&self) -> &Path {
        self.0.path()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The program at `binary`, in this folder, with its output piped.
    pub fn command(&self, binary: &Path, args: &[&str]) -> Command {
        let mut command = Command::new(binary);
        clear_launcher(&mut command).env("OMP_NUM_THREADS", "1").env(events::FOLDER, self.path("events"));
        command.args(args).current_dir(self.folder());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs the program to its end.
    pub fn run(&self, binary: &Path, args: &[&str]) -> Assert {
        finish(self.command(binary, args)).assert()
    }

    /// What each rank wrote, by rank.
    pub fn events(&self) -> BTreeMap<usize, Vec<Event>> {
        let logs = events::read_folder(&self.path("events")).unwrap();
        let events = |log: events::EventLog| log.records.into_iter().map(|record| record.event).collect();
        logs.into_iter().map(|(rank, log)| (rank, events(log))).collect()
    }

    /// The names of all files in the folder.
    pub fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder()).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

/// Runs `command` until it and all processes that inherited its output have ended. A worker that is left behind is a failure.
pub fn finish(command: Command) -> Output {
    lockstep_process::watchdog::output(command)
}

pub fn stdout(run: &Assert) -> String {
    String::from_utf8(run.get_output().stdout.clone()).unwrap()
}

pub fn stderr(run: &Assert) -> String {
    String::from_utf8(run.get_output().stderr.clone()).unwrap()
}
