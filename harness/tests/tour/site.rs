//! A folder with the command and fake labs in it, like an installation, and the prepared command.

use std::path::{Path, PathBuf};
use std::{env, fs};

use assert_cmd::assert::OutputAssertExt;
use serde_json::Value;
use tempfile::TempDir;

pub(crate) const SPAWN: &str = "lab-02-spawn-ddp";
pub(crate) const RESUME: &str = "lab-06-snapshot-resume";

pub(crate) struct Site {
    folder: TempDir,
}

impl Site {
    /// The command and the fake labs.
    pub(crate) fn new() -> Self {
        let site = Self::without_labs();
        [SPAWN, RESUME].iter().for_each(|lab| fs::hard_link(env::current_exe().unwrap(), site.path(lab)).unwrap());
        site
    }

    /// The command alone. Linked, not copied: a file that was just written may still be open for writing in a process that
    /// another test is starting, and cannot be executed then.
    pub(crate) fn without_labs() -> Self {
        let folder = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        fs::hard_link(env!("CARGO_BIN_EXE_lockstep"), folder.path().join("lockstep")).unwrap();
        fs::create_dir(folder.path().join("tmp")).unwrap();
        Site { folder }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `lockstep` with labs that tell this lie; its temporary files go to the folder that [`Site::leftovers`] checks.
    pub(crate) fn command(&self, lie: &str, args: &[&str]) -> std::process::Command {
        let mut command = std::process::Command::new(self.path("lockstep"));
        command.args(args).env(crate::fakes::LIE, lie).env("TMPDIR", self.path("tmp"));
        command.env("LC_ALL", "C.UTF-8").current_dir(self.folder.path());
        command
    }

    /// The same, run to its end.
    pub(crate) fn run(&self, lie: &str, args: &[&str]) -> assert_cmd::assert::Assert {
        lockstep_process::watchdog::output(self.command(lie, args)).assert()
    }

    /// The files that the command left in its temporary folder.
    pub(crate) fn leftovers(&self) -> Vec<PathBuf> {
        entries(&self.path("tmp"))
    }
}

pub(crate) fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    entries
}

/// The report on stdout.
pub(crate) fn json(assert: &assert_cmd::assert::Assert) -> Value {
    serde_json::from_slice(&assert.get_output().stdout).unwrap()
}

/// The finding of the report's case `case` whose claim contains these words.
pub(crate) fn finding<'a>(report: &'a Value, case: usize, words: &str) -> &'a Value {
    let findings = report["cases"][case]["findings"].as_array().unwrap();
    let found = findings.iter().find(|finding| finding["claim"].as_str().unwrap().contains(words));
    found.unwrap_or_else(|| panic!("no claim has {words:?} in it: {findings:#?}"))
}

pub(crate) fn stdout(assert: &assert_cmd::assert::Assert) -> String {
    String::from_utf8(assert.get_output().stdout.clone()).unwrap()
}

pub(crate) fn stderr(assert: &assert_cmd::assert::Assert) -> String {
    String::from_utf8(assert.get_output().stderr.clone()).unwrap()
}
