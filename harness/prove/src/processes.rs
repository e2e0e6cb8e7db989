//! The processes of a run, read from `/proc`, and the search for those that it left behind.
//!
//! Every process of a run inherits a mark in its environment, and one that loses its parent becomes a child of this
//! process. Whether one is a leak is a pure function of the listing.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lockstep_process::{Signal, kill_until_gone, proc, reap_orphans};
use rustix::process::{Pid, getpid, kill_process};

/// The variable with the mark: the run's own text, a colon, the node.
pub(crate) const MARK: &str = "LOCKSTEP_INJECT_MARK";
/// How long processes may take to end after a SIGKILL.
const GONE: Duration = Duration::from_secs(2);
const CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// A process in the listing.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) parent: i32,
    /// It has ended and is not reaped yet.
    pub(crate) ended: bool,
    /// The value of [`MARK`].
    pub(crate) mark: Option<String>,
    /// The program and its arguments.
    pub(crate) command: String,
}

/// The processes that belong to the run: by its mark, or as descendants of process `this`, which adopts orphans. `this`
/// and those in `spared` do not count. A process that only reads the run's files has neither.
pub(crate) fn of_run<'a>(listing: &'a [Process], mark: &str, this: i32, spared: &[i32]) -> Vec<&'a Process> {
    let parents: BTreeMap<i32, i32> = listing.iter().map(|process| (process.pid, process.parent)).collect();
    let descendants = proc::descendants(this, &parents);
    let marked = |process: &Process| {
        process.mark.as_deref().is_some_and(|of| of.rsplit_once(':').is_some_and(|(run, _)| run == mark))
    };
    let counts = |process: &Process| process.pid != this && !process.ended && !spared.contains(&process.pid);
    let belongs = |process: &&Process| counts(process) && (marked(process) || descendants.contains(&process.pid));
    listing.iter().filter(belongs).collect()
}

/// The processes of one node of the run.
pub(crate) fn of_node<'a>(listing: &'a [Process], mark: &str, node: usize) -> Vec<&'a Process> {
    let whole = format!("{mark}:{node}");
    listing.iter().filter(|process| !process.ended && process.mark.as_deref() == Some(&*whole)).collect()
}

/// All processes that this user may inspect.
pub(crate) fn listing() -> Vec<Process> {
    proc::pids().filter_map(read).collect()
}

fn read(pid: i32) -> Option<Process> {
    let stat = proc::Stat::of(pid)?;
    let mark = proc::variable(pid, MARK).map(|mark| mark.to_string_lossy().into_owned());
    Some(Process { pid, parent: stat.parent, ended: stat.is_dead(), mark, command: proc::command_line(pid)? })
}

/// The processes of the run that exist now. Children of this process that have ended are reaped first, except `ours`,
/// for which their owner waits.
fn present(mark: &str, ours: &[i32]) -> Vec<Process> {
    reap_orphans(ours);
    of_run(&listing(), mark, getpid().as_raw_pid(), ours).into_iter().cloned().collect()
}

/// Waits briefly until no process of the run is left; returns and kills those that remain.
pub(crate) fn leaked(mark: &str, ours: &[i32]) -> Vec<Process> {
    let until = Instant::now() + GONE;
    let left = loop {
        let left = present(mark, ours);
        if left.is_empty() || Instant::now() >= until {
            break left;
        }
        std::thread::sleep(CHECK_INTERVAL);
    };
    if !left.is_empty() {
        end(mark, ours);
    }
    left
}

/// Kills every process of the run until none is left or the time limit has passed.
pub(crate) fn end(mark: &str, ours: &[i32]) {
    let pids = || present(mark, ours).iter().map(|process| process.pid).collect();
    kill_until_gone(Instant::now() + GONE, pids);
}

/// Sends a signal; it is not an error if the process has ended meanwhile.
pub(crate) fn send(pid: i32, signal: i32) {
    if let (Some(pid), Some(signal)) = (Pid::from_raw(pid), Signal::from_named_raw(signal)) {
        let _ = kill_process(pid, signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, mark: Option<&str>, command: &str) -> Process {
        Process { pid, parent: 1, ended: false, mark: mark.map(str::to_owned), command: command.into() }
    }

    fn pids(found: Vec<&Process>) -> Vec<i32> {
        found.into_iter().map(|process| process.pid).collect()
    }

    #[test]
    fn finds_the_processes_of_a_run_by_their_mark_or_their_ancestors() {
        let child = |pid, parent| Process { parent, ..process(pid, None, "x") };
        let listing = [
            process(2, Some("a-7:0"), "worker"),
            process(3, Some("a-7:1"), "worker"),
            process(4, Some("a-70:0"), "another run's"),
            child(5, 7),
            child(6, 5),
            process(7, Some("a-7:0"), "the one that asks"),
            Process { ended: true, ..process(8, Some("a-7:0"), "") },
            child(9, 7),
            process(10, None, "tail -f a-7/node-0.txt"),
            child(11, 12),
            child(12, 11),
        ];
        assert_eq!(pids(of_run(&listing, "a-7", 7, &[9])), [2, 3, 5, 6]);
        assert_eq!(pids(of_node(&listing, "a-7", 1)), [3]);
    }

    #[test]
    fn lists_this_process() {
        let this = getpid().as_raw_pid();
        assert!(listing().iter().any(|process| process.pid == this && !process.ended));
    }
}
