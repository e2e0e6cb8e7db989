//! Programs that are started together and judged from outside, such as the agents of a job: each with its output in a [`Log`], and all ended,
//! with what they started, when the [`Job`] is dropped.
//!
//! For a worker of an agent, which must not outlive it, see [`Workers`](crate::Workers); for one program, [`Group`](crate::Group).

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lockstep_contract::foreign;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::{Deaths, Exit, Process, end_of_file};

/// The programs of a job, by number in the order of their starts. None is reaped before [`end`](Self::end), so that no other process gets the
/// id of one that has ended, or of its process group. Its descriptor is readable when a program has ended since the last
/// [`wait`](Self::wait).
#[derive(Debug)]
pub struct Job {
    programs: Vec<Process>,
    exits: Vec<Option<Exit>>,
    deaths: Deaths,
    ended: bool,
}

impl Job {
    /// A job without programs yet.
    pub fn new() -> io::Result<Self> {
        Ok(Job { programs: Vec::new(), exits: Vec::new(), deaths: Deaths::new()?, ended: false })
    }

    /// Starts a program in a process group of its own, with empty input and both outputs in `log`. Returns its number.
    pub fn start(&mut self, command: &mut Command, log: &Log) -> io::Result<usize> {
        let output = File::options().create(true).append(true).open(&log.path);
        let output = output.map_err(|error| {
            io::Error::new(error.kind(), format!("cannot write {}: {error}", foreign::path(&log.path)))
        })?;
        command.process_group(0).stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let (number, process) = (self.programs.len(), Process::start(command)?);
        let watched = self.deaths.add(&process, number as u64);
        self.programs.push(process);
        self.exits.push(None);
        watched.map(|()| number)
    }

    /// Waits until a program ends that ran at the last call, or until the deadline; false in the latter case.
    pub fn wait(&mut self, deadline: Instant) -> io::Result<bool> {
        let ended = self.deaths.wait(Some(deadline))?;
        for number in ended.iter().map(|name| *name as usize) {
            self.exits[number] = self.programs[number].ended()?;
        }
        Ok(!ended.is_empty())
    }

    /// How a program has ended, if [`wait`](Self::wait) has seen it.
    pub fn exit(&self, number: usize) -> Option<&Exit> {
        self.exits[number].as_ref()
    }

    /// The id of a program's process, and of its process group.
    pub fn pid(&self, number: usize) -> Pid {
        self.programs[number].pid()
    }

    /// Sends a program a signal. It is not an error if the program has ended.
    pub fn signal(&self, number: usize, signal: Signal) -> io::Result<()> {
        self.programs[number].signal(signal)
    }

    /// Asks all programs to end by SIGTERM, waits for them up to `grace`, and kills what is left of them and their process groups. Without
    /// grace they are only killed. A job that has ended starts nothing more.
    pub fn end(&mut self, grace: Duration) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        if !grace.is_zero() {
            self.programs.iter().for_each(|program| drop(program.signal(Signal::TERM)));
        }
        let deadline = Instant::now() + grace;
        self.programs.iter().for_each(|program| program.wait_until(deadline));
        for program in &self.programs {
            // An error means that the group has no process left.
            let _ = kill_process_group(program.pid(), Signal::KILL);
        }
        for (program, exit) in self.programs.iter_mut().zip(&mut self.exits) {
            // An error means that other code has reaped it.
            let status = program.child.wait().ok();
            *exit = exit.take().or(status.map(Exit::from));
        }
    }
}

impl AsFd for Job {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.deaths.as_fd()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.end(Duration::ZERO);
    }
}

/// A file to which programs append their output, and which this process reads meanwhile.
#[derive(Clone, Debug)]
pub struct Log {
    path: PathBuf,
    /// The number of bytes that [`new_lines`](Self::new_lines) has returned.
    read: u64,
}

/// The maximum number of bytes that one call of [`Log::new_lines`] or [`Log::text`] reads.
const AT_ONCE: u64 = 1 << 20;
/// How many bytes at a file's end [`last_lines`] searches.
const LAST: u64 = 64 << 10;

impl Log {
    /// The log in this file, which the first program creates.
    pub fn new(path: PathBuf) -> Self {
        Log { path, read: 0 }
    }

    /// The complete lines since the last call; none if the file cannot be read.
    pub fn new_lines(&mut self) -> Vec<String> {
        let mut text = Vec::new();
        let Ok(mut file) = File::open(&self.path) else { return Vec::new() };
        if file.seek(SeekFrom::Start(self.read)).is_err() || file.take(AT_ONCE).read_to_end(&mut text).is_err() {
            return Vec::new();
        }
        // A line that is longer than one read counts as complete.
        let full = text.len() as u64 == AT_ONCE;
        let end = text.iter().rposition(|byte| *byte == b'\n').map(|newline| newline + 1);
        text.truncate(end.unwrap_or(if full { text.len() } else { 0 }));
        self.read += text.len() as u64;
        String::from_utf8_lossy(&text).lines().map(str::to_owned).collect()
    }

    /// The end of all that was written, at most a MiB; empty if the file cannot be read.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&end_of_file(&self.path, AT_ONCE).unwrap_or_default()).into_owned()
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The last lines of a file, without blank ones; none if it cannot be read.
pub fn last_lines(path: &Path, most: usize) -> Vec<String> {
    let end = end_of_file(path, LAST).unwrap_or_default();
    let text = String::from_utf8_lossy(&end);
    let mut last: Vec<String> =
        text.lines().rev().filter(|line| !line.trim().is_empty()).take(most).map(str::to_owned).collect();
    last.reverse();
    last
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn reports_the_end_of_each_program_and_keeps_its_output() {
        let folder = tempfile::tempdir().unwrap();
        let logs = ["a", "b"].map(|name| Log::new(folder.path().join(name)));
        let mut job = Job::new().unwrap();
        let first = job.start(&mut shell("echo out; echo err >&2; exit 3"), &logs[0]).unwrap();
        let second = job.start(&mut shell("exec sleep 1000"), &logs[1]).unwrap();
        while job.exit(first).is_none() {
            assert!(job.wait(Instant::now() + LONG).unwrap());
        }
        assert_eq!((job.exit(first), job.exit(second)), (Some(&Exit::Code(3)), None));
        assert_eq!(last_lines(logs[0].path(), 1), ["err"]);
        assert!(!job.wait(Instant::now()).unwrap());
        job.signal(second, Signal::INT).unwrap();
        assert!(job.wait(Instant::now() + LONG).unwrap());
        assert_eq!(job.exit(second), Some(&Exit::Signal(Signal::INT.as_raw())));
    }

    #[test]
    fn ends_what_its_programs_have_started_and_says_how_they_ended() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = Log::new(folder.path().join("log"));
        let mut job = Job::new().unwrap();
        for script in ["sleep 1000 & echo $!; wait", "trap 'exit 5' TERM; echo ready; while :; do sleep 0.01; done"] {
            job.start(&mut shell(script), &log).unwrap();
        }
        let mut lines = Vec::new();
        crate::watchdog::until(|| {
            lines.extend(log.new_lines());
            lines.len() == 2
        })
        .unwrap();
        let child: i32 = lines.iter().find_map(|line| line.parse().ok()).unwrap();
        job.end(LONG);
        assert_eq!(job.exit(1), Some(&Exit::Code(5)));
        assert!(job.exit(0).is_some());
        // Its parent has gone, so that init, or the subreaper, may not have reaped it yet.
        let runs = || crate::proc::Stat::of(child).is_some_and(|stat| !stat.is_dead());
        crate::watchdog::until(|| !runs()).unwrap();
    }

    #[test]
    fn reads_complete_lines_once_and_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut log = Log::new(path.clone());
        assert_eq!((log.new_lines(), log.text(), last_lines(&path, 3)), (vec![], String::new(), vec![]));
        fs::write(&path, "a\nb").unwrap();
        assert_eq!((log.new_lines(), log.new_lines()), (vec!["a".to_owned()], vec![]));
        fs::write(&path, b"a\nbc\n \nd\xff\n").unwrap();
        assert_eq!(log.new_lines(), ["bc", " ", "d\u{fffd}"]);
        assert_eq!(log.text(), "a\nbc\n \nd\u{fffd}\n");
        assert_eq!(last_lines(&path, 2), ["bc", "d\u{fffd}"]);
    }
}
