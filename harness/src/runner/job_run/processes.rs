//! Who runs, as `/proc` tells it, and who of them should not: the search for what a run left behind.
//!
//! Every process of a run inherits a mark in its environment, and one that loses its parent comes to this process. Whether one is a
//! leak is a pure function of the listing.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, waitpid};

/// The variable with the mark: the run's own text, a colon, the node.
pub(super) const MARK: &str = "LOCKSTEP_INJECT_MARK";
/// How long processes that were sent a last signal may take to be gone.
const GONE: Duration = Duration::from_secs(2);
/// How often to look.
const LOOK: Duration = Duration::from_millis(5);

/// A line of the listing.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) parent: i32,
    /// It has ended, and nobody has taken note of that yet.
    pub(crate) ended: bool,
    /// The value of [`MARK`].
    pub(crate) mark: Option<String>,
    /// Program and arguments.
    pub(crate) command: String,
}

/// Those of the listing that belong to the run: by its mark, or as descendants of process `this`, to which comes whoever loses
/// its parent. `this` and those in `spared` do not count. Somebody who merely reads the run's files has neither.
pub(crate) fn of_run<'a>(listing: &'a [Process], mark: &str, this: i32, spared: &[i32]) -> Vec<&'a Process> {
    let parents: BTreeMap<i32, i32> = listing.iter().map(|process| (process.pid, process.parent)).collect();
    // A listing is not made in one moment: a circle in it must not keep us.
    let descends = |pid: i32| {
        std::iter::successors(Some(pid), |pid| parents.get(pid).copied())
            .skip(1)
            .take(listing.len())
            .any(|of| of == this)
    };
    let marked = |process: &Process| {
        process.mark.as_deref().is_some_and(|of| of.rsplit_once(':').is_some_and(|(run, _)| run == mark))
    };
    let counts = |process: &Process| process.pid != this && !process.ended && !spared.contains(&process.pid);
    let belongs = |process: &&Process| counts(process) && (marked(process) || descends(process.pid));
    listing.iter().filter(belongs).collect()
}

/// Those of one node of the run.
pub(super) fn of_node<'a>(listing: &'a [Process], mark: &str, node: usize) -> Vec<&'a Process> {
    let whole = format!("{mark}:{node}");
    listing.iter().filter(|process| !process.ended && process.mark.as_deref() == Some(&*whole)).collect()
}

/// All processes that this user may look at.
pub(crate) fn listing() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter_map(read).collect()
}

fn read(pid: i32) -> Option<Process> {
    let bytes = |file: &str| fs::read(format!("/proc/{pid}/{file}")).ok();
    let stat = String::from_utf8_lossy(&bytes("stat")?).into_owned();
    let (parent, ended) = parent_and_end(&stat)?;
    let command = String::from_utf8_lossy(&bytes("cmdline")?).trim_end_matches('\0').replace('\0', " ");
    let mark = bytes("environ").and_then(|environ| mark_in(&environ));
    Some(Process { pid, parent, ended, mark, command })
}

/// From `/proc/PID/stat`: `PID (NAME) STATE PARENT …`, where the name may hold anything (proc_pid_stat(5)).
fn parent_and_end(stat: &str) -> Option<(i32, bool)> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    Some((fields.next()?.parse().ok()?, matches!(state, "Z" | "X")))
}

fn mark_in(environ: &[u8]) -> Option<String> {
    let mut variables = environ.split(|byte| *byte == 0);
    let value = variables.find_map(|variable| variable.strip_prefix(MARK.as_bytes())?.strip_prefix(b"="))?;
    Some(String::from_utf8_lossy(value).into_owned())
}

/// Waits a little until no process of the run is left; what stays is returned, and killed.
pub(super) fn leaked(mark: &str, ours: &[i32]) -> Vec<Process> {
    let until = Instant::now() + GONE;
    let left = loop {
        let listing = listing();
        reap(&listing, ours);
        let left: Vec<_> = of_run(&listing, mark, getpid().as_raw_pid(), ours).into_iter().cloned().collect();
        if left.is_empty() || Instant::now() >= until {
            break left;
        }
        std::thread::sleep(LOOK);
    };
    if !left.is_empty() {
        end(mark, ours);
    }
    left
}

/// Kills every process of the run until none is left or a little time has passed.
pub(super) fn end(mark: &str, ours: &[i32]) {
    let until = Instant::now() + GONE;
    while Instant::now() < until {
        let listing = listing();
        reap(&listing, ours);
        let left = of_run(&listing, mark, getpid().as_raw_pid(), ours);
        if left.is_empty() {
            break;
        }
        left.iter().for_each(|process| send(process.pid, 9));
        std::thread::sleep(LOOK);
    }
}

/// Sends a signal; a process that has gone meanwhile is no matter.
pub(super) fn send(pid: i32, signal: i32) {
    if let (Some(pid), Some(signal)) = (Pid::from_raw(pid), Signal::from_named_raw(signal)) {
        let _ = kill_process(pid, signal);
    }
}

/// Takes note of the end of processes that came to this one because their parents died. Those in `ours` are waited for by
/// whoever started them.
pub(super) fn reap(listing: &[Process], ours: &[i32]) {
    let this = getpid().as_raw_pid();
    let orphans =
        listing.iter().filter(|process| process.ended && process.parent == this && !ours.contains(&process.pid));
    for orphan in orphans {
        let _ = waitpid(Pid::from_raw(orphan.pid), WaitOptions::NOHANG);
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
    fn reads_the_state_of_a_process_whatever_its_name_is() {
        assert_eq!(parent_and_end("7 (a) Z 1 2) S 3 4 5"), Some((3, false)));
        assert_eq!(parent_and_end("7 (sh) Z 31 4 5"), Some((31, true)));
        for broken in ["", "7", "7 (sh", "7 (sh)", "7 (sh) S", "7 (sh) S x"] {
            assert_eq!(parent_and_end(broken), None, "{broken}");
        }
    }

    #[test]
    fn finds_its_mark_among_the_variables() {
        let environ = format!("A=1\0X{MARK}=no\0{MARK}=run-1:0\0B=2\0");
        assert_eq!(mark_in(environ.as_bytes()).as_deref(), Some("run-1:0"));
        assert_eq!(mark_in(b"A=1\0"), None);
    }

    #[test]
    fn lists_this_very_process() {
        let this = getpid().as_raw_pid();
        assert!(listing().iter().any(|process| process.pid == this && !process.ended));
    }
}
