//! What is left when the tour is ended from outside, or the lab does not end: nothing.
//!
//! Every process that the tour starts inherits the write end of its stdout; when the read end comes to its end, all of
//! them are gone.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;

use rustix::process::{Pid, Signal, kill_process};

use crate::site::{LIMIT, Site, stderr};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("ends_the_lab_and_its_children_at_a_signal_and_dies_of_it", ends_at_signal),
    ("leaves_no_process_when_it_is_killed", leaves_no_process),
    ("kills_a_lab_that_does_not_end_in_time_and_says_who_was_silent", ends_at_timeout),
];

fn ends_at_signal() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let site = Site::new();
        let mut tour = Running::start(site.tour("hangs with a child"));
        tour.await_line("up");
        let status = tour.ended_by(signal);
        assert_eq!(status.signal(), Some(signal.as_raw()), "{status}");
        assert_eq!(site.leftovers().len(), 0);
    }
}

fn leaves_no_process() {
    let site = Site::new();
    let mut tour = Running::start(site.tour("hangs"));
    tour.await_line("up");
    tour.ended_by(Signal::KILL);
}

fn ends_at_timeout() {
    let site = Site::new();
    let assert = site.run("hangs with a child", &["--timeout", "1"]).code(1);
    let told = stderr(&assert);
    assert!(told.contains("error: run A (2 ranks × batch 32) failed\n"), "{told}");
    assert!(
        told.contains("did not end within 1 s (--timeout), and all its processes were killed: no rank wrote an event")
    );
    assert_eq!(site.leftovers().len(), 0);
}

/// A tour in the background, killed and reaped when a test fails.
pub(crate) struct Running {
    child: Child,
    output: Option<BufReader<ChildStdout>>,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let output = child.stdout.take().map(BufReader::new);
        Running { child, output }
    }

    /// Reads up to a line that begins so.
    pub(crate) fn await_line(&mut self, begin: &str) {
        let output = self.output.as_mut().unwrap();
        let mut lines = output.lines().map(Result::unwrap);
        assert!(lines.any(|line| line.starts_with(begin)), "the tour ended without a line {begin:?}");
    }

    /// Sends the signal, and waits for the end of all that was started, and of the tour.
    pub(crate) fn ended_by(&mut self, signal: Signal) -> ExitStatus {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        let (sender, receiver) = mpsc::channel();
        let mut output = self.output.take().unwrap();
        thread::spawn(move || sender.send(output.read_to_end(&mut Vec::new()).unwrap()));
        receiver.recv_timeout(LIMIT).expect("a process that the tour had started is left");
        self.child.wait().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
