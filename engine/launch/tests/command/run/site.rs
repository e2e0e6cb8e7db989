//! The environment of one test: its own folder and addresses, and the command as a user has it, in the background or
//! until it ends. All processes that it started are found by a variable in their environment, and are ended with the
//! test.

use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};
use std::{env, fs};

use insta::internals::SettingsBindDropGuard;
use lockstep_launch::command::quoted;
use lockstep_process::{free_port, proc};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::running::{Ended, Running};
use crate::shown::filtered;

/// Every process that a test starts has this variable, with the test's folder as its value.
const MARK: &str = "LOCKSTEP_TEST_SITE";

pub(crate) struct Site {
    folder: TempDir,
    /// The third byte of this test's loopback addresses.
    net: u8,
    _filtered: SettingsBindDropGuard,
}

impl Site {
    pub(crate) fn new() -> Self {
        static TESTS: AtomicU8 = AtomicU8::new(1);
        let folder = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        fs::create_dir(folder.path().join("tmp")).unwrap();
        let filtered = filtered(Some(folder.path()));
        Site { folder, net: TESTS.fetch_add(1, Ordering::Relaxed), _filtered: filtered }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The path as a word of a command line.
    pub(crate) fn word(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// The path as a word of a line of shell.
    pub(crate) fn shell(&self, name: &str) -> String {
        quoted(&self.word(name))
    }

    /// Writes a file and returns its path as a word of a command line.
    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        fs::write(self.path(name), text).unwrap();
        self.word(name)
    }

    /// The same with a file that can be run.
    pub(crate) fn program(&self, name: &str, text: &str) -> String {
        let path = self.file(name, text);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    pub(crate) fn read(&self, name: &str) -> String {
        let bytes = fs::read(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The loopback address of node `n`, which no other test uses.
    pub(crate) fn address(&self, n: u8) -> String {
        let process = u8::try_from(std::process::id() % 250).unwrap();
        Ipv4Addr::new(127, process + 1, self.net, n + 1).to_string()
    }

    /// The flags of a static rendezvous on this test's first address.
    pub(crate) fn master(&self) -> [String; 2] {
        [format!("--master-port={}", free_port().unwrap()), format!("--master-addr={}", self.address(0))]
    }

    /// `lockstep run` with these words, in the environment of a user without any settings.
    pub(crate) fn lockstep(&self, words: &[&str]) -> Command {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("lockstep"));
        command.arg("run").args(words);
        self.prepare(&mut command);
        command
    }

    /// Marks a command as part of this test, and gives it the test's folder and an environment without a job's
    /// variables.
    pub(crate) fn prepare(&self, command: &mut Command) {
        command.env_clear().env("PATH", env::var_os("PATH").unwrap()).env("HOME", self.folder.path());
        command.env(MARK, self.folder.path()).env("TMPDIR", self.path("tmp")).env("PYTHON_EXEC", python());
        command.env("PYTHONDONTWRITEBYTECODE", "1").env("LC_ALL", "C.UTF-8");
        command.current_dir(self.folder.path()).stdin(Stdio::null());
    }

    pub(crate) fn run(&self, words: &[&str]) -> Ended {
        self.start(words).ended()
    }

    /// Runs in the background.
    pub(crate) fn start(&self, words: &[&str]) -> Running {
        Running::start(self.lockstep(words))
    }

    /// The remaining files in the folder for temporary files.
    pub(crate) fn leftovers(&self) -> Vec<PathBuf> {
        fs::read_dir(self.path("tmp")).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    /// The live processes of this test: process id and command line.
    pub(crate) fn processes(&self) -> Vec<(i32, String)> {
        let mark = self.folder.path().as_os_str();
        let ours = proc::pids().filter(|pid| proc::variable(*pid, MARK).as_deref() == Some(mark));
        ours.map(|pid| (pid, proc::command_line(pid).unwrap_or_default())).collect()
    }

    /// Checks that no process of the test is alive.
    pub(crate) fn assert_no_process(&self) {
        assert_eq!(self.processes(), [], "processes are left");
    }

    /// The same after a kill that the command could not handle: the cleanup takes a moment.
    pub(crate) fn await_no_process(&self) {
        self.until("no process is left", || self.processes().is_empty());
    }

    /// Waits until `holds` returns true.
    pub(crate) fn until(&self, what: &str, holds: impl Fn() -> bool) {
        if let Err(why) = lockstep_process::watchdog::until(holds) {
            panic!("waited for `{what}` in vain: {why}; of this test: {:?}", self.processes());
        }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        // If SIGKILL does not end a process, nothing more can be done.
        let _ = lockstep_process::watchdog::until(|| {
            let left = self.processes();
            for (pid, _) in &left {
                let _ = kill_process(Pid::from_raw(*pid).unwrap(), Signal::KILL);
            }
            left.is_empty()
        });
    }
}

/// Runs with a longer and longer `--stop-timeout` until this holds.
pub(crate) fn longer_and_longer(run: impl Fn(&str) -> Ended, holds: impl Fn(&Ended) -> bool) -> Ended {
    let mut seconds = 0.5;
    loop {
        let ended = run(&format!("--stop-timeout={seconds}"));
        if holds(&ended) {
            return ended;
        }
        assert!(seconds < 60.0, "{ended}");
        seconds *= 4.0;
    }
}

/// The Python that runs scripts: the executable itself, because a wrapper costs time at every start.
pub(crate) fn python() -> &'static str {
    static PYTHON: OnceLock<String> = OnceLock::new();
    PYTHON.get_or_init(|| {
        let asked = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output();
        let asked = asked.expect("these tests need a python3 in PATH");
        String::from_utf8(asked.stdout).unwrap().trim().to_owned()
    })
}
