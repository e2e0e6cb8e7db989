//! An agent in a process of its own, and helpers that inspect processes.

use lockstep_process::proc::{self, Stat};
use std::cell::Cell;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;

use crate::AGENT;

pub(crate) struct AgentProcess {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    printed: BufReader<ChildStderr>,
    families: Vec<i32>,
}

impl AgentProcess {
    pub(crate) fn launch() -> Self {
        Self::launch_with(|command| command)
    }

    pub(crate) fn launch_with(change: impl FnOnce(&mut Command) -> &mut Command) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let command = change(command.arg(AGENT));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        let printed = BufReader::new(child.stderr.take().unwrap());
        let mut agent = AgentProcess { child, input, output, printed, families: vec![] };
        assert_eq!(agent.line(), "ready");
        agent
    }

    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// A line that a worker printed.
    pub(crate) fn printed(&mut self) -> String {
        let mut line = String::new();
        self.printed.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub(crate) fn expect_printed(&mut self, expected: &str) {
        assert_eq!(self.printed(), expected);
    }

    pub(crate) fn send(&mut self, command: &str) {
        writeln!(self.input.as_mut().unwrap(), "{command}").unwrap();
    }

    /// Sends a command and returns the answer.
    pub(crate) fn ask(&mut self, command: &str) -> String {
        self.send(command);
        self.line()
    }

    /// Starts a worker that runs this script; returns its process id.
    pub(crate) fn start(&mut self, index: usize, script: &str) -> i32 {
        self.ask(&format!("start {index} {script}")).strip_prefix("pid ").unwrap().parse().unwrap()
    }

    /// Like [`start`](Self::start) for a script that prints process ids in one line when they all run; also returns
    /// them.
    pub(crate) fn start_family(&mut self, index: usize, script: &str) -> (i32, Vec<i32>) {
        let pid = self.start(index, script);
        let family: Vec<i32> = self.printed().split(' ').map(|pid| pid.parse().unwrap()).collect();
        self.families.extend(&family);
        (pid, family)
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Kills the agent as `kill -9` does.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Ends the agent normally.
    pub(crate) fn close(mut self) {
        assert_eq!(self.ask("close"), "closed");
        drop(self.input.take());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for AgentProcess {
    /// Cleans up after a failed test, which may have failed because these processes are still alive.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            let lost = self.families.iter().filter(|pid| lives(**pid));
            lost.for_each(|pid| signal(*pid, rustix::process::Signal::KILL));
        }
    }
}

pub(crate) fn signal(pid: i32, signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// The state letter of a process (proc(5)); `None` if there is no such process.
pub(crate) fn state(pid: i32) -> Option<char> {
    Some(Stat::of(pid)?.state)
}

pub(crate) fn lives(pid: i32) -> bool {
    state(pid).is_some_and(|state| state != 'Z')
}

/// Waits until another process has done something.
pub(crate) fn until(what: &str, happened: impl Fn() -> bool) {
    lockstep_process::watchdog::until(happened).unwrap_or_else(|why| panic!("{what} did not happen: {why}"));
}

pub(crate) fn until_gone(pids: &[i32]) {
    until(&format!("the end of {pids:?}"), || !pids.iter().any(|pid| lives(*pid)));
}

/// The agent's reaper.
pub(crate) fn reaper_of(agent: i32) -> i32 {
    reaper_other_than(0, agent)
}

/// The agent's reaper, once it is a different process from this one.
pub(crate) fn reaper_other_than(former: i32, agent: i32) -> i32 {
    let is_reaper = |pid: &i32| {
        let is_named = Stat::of(*pid).is_some_and(|stat| stat.name == "job-reaper");
        is_named && *pid != former && lives(*pid)
    };
    let found = Cell::new(None);
    until("a reaper", || {
        found.set(children(agent).into_iter().find(is_reaper));
        found.get().is_some()
    });
    found.get().unwrap()
}

pub(crate) fn children(pid: i32) -> Vec<i32> {
    proc::children_of(pid)
}

pub(crate) fn exists(path: &Path) -> bool {
    path.exists()
}
