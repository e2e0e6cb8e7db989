//! A command that is ended from outside leaves nothing. All processes of a run have the run's folder in their arguments, so
//! that they are found in `/proc` whatever their parent is by then.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use lockstep_process::{KillOnDrop, proc};
use rustix::process::{Pid, Signal, kill_process};

use crate::site::Site;

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("ends_all_that_it_started_at_a_signal_and_dies_of_it", ends_at_signal),
    ("leaves_no_process_when_it_is_killed", leaves_no_process),
];

fn ends_at_signal() {
    for (signal, args) in
        [(Signal::INT, &["tour"][..]), (Signal::TERM, &["inject", "kill-one-worker"]), (Signal::HUP, &["verify", "06"])]
    {
        let site = Site::new();
        let mut command = Running::start(site.command("hangs", args));
        // At least an agent and two ranks.
        command.await_processes(&site.path("tmp"), |count| count > 2);
        let status = command.ended_by(signal);
        assert_eq!(status.signal(), Some(signal.as_raw()), "{args:?}: {status}");
        assert_eq!(processes(&site.path("tmp")), 0, "{args:?}");
        assert_eq!(site.leftovers().len(), 0, "{args:?}");
    }
}

fn leaves_no_process() {
    let site = Site::new();
    let mut command = Running::start(site.command("hangs", &["tour"]));
    command.await_processes(&site.path("tmp"), |count| count > 2);
    command.ended_by(Signal::KILL);
    command.await_processes(&site.path("tmp"), |count| count == 0);
}

/// A command in the background, killed and reaped when a test fails.
pub(crate) struct Running {
    child: KillOnDrop,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        Running { child: KillOnDrop(child) }
    }

    /// Waits until the given number of processes have `folder` in their arguments.
    pub(crate) fn await_processes(&mut self, folder: &Path, wanted: impl Fn(usize) -> bool) {
        // Other processes provide no event to wait for.
        if let Err(why) = lockstep_process::watchdog::until(|| wanted(processes(folder))) {
            panic!("{} processes are at work in {}: {why}", processes(folder), folder.display());
        }
    }

    /// Sends the signal and waits for the command's end.
    pub(crate) fn ended_by(&mut self, signal: Signal) -> ExitStatus {
        kill_process(Pid::from_child(&self.child.0), signal).unwrap();
        self.child.0.wait().unwrap()
    }
}

/// The number of processes with `folder` in their arguments.
pub(crate) fn processes(folder: &Path) -> usize {
    let folder = folder.to_string_lossy();
    proc::pids().filter_map(proc::command_line).filter(|text| text.contains(&*folder)).count()
}
