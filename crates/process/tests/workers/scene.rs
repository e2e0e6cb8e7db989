//! An agent in a process of its own, and the questions that the tests ask about processes.

use lockstep_process::proc::{self, Stat};
use std::cell::Cell;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;

use crate::actor::AGENT;

pub(crate) struct Scene {
    agent: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    printed: BufReader<ChildStderr>,
    families: Vec<i32>,
}

impl Scene {
    pub(crate) fn begin() -> Self {
        Self::begin_with(|command| command)
    }

    pub(crate) fn begin_with(change: impl FnOnce(&mut Command) -> &mut Command) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg(AGENT).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut agent = change(&mut command).spawn().unwrap();
        let (input, output) = (agent.stdin.take(), BufReader::new(agent.stdout.take().unwrap()));
        let printed = BufReader::new(agent.stderr.take().unwrap());
        let mut scene = Scene { agent, input, output, printed, families: vec![] };
        assert_eq!(scene.line(), "ready");
        scene
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

    pub(crate) fn hear(&mut self, expected: &str) {
        assert_eq!(self.printed(), expected);
    }

    pub(crate) fn say(&mut self, command: &str) {
        writeln!(self.input.as_mut().unwrap(), "{command}").unwrap();
    }

    /// Says it and returns the answer.
    pub(crate) fn ask(&mut self, command: &str) -> String {
        self.say(command);
        self.line()
    }

    /// Starts a worker that runs this script; returns its process id.
    pub(crate) fn start(&mut self, index: usize, script: &str) -> i32 {
        self.ask(&format!("start {index} {script}")).strip_prefix("pid ").unwrap().parse().unwrap()
    }

    /// The same for a script that prints process ids in one line once all is set up; returns them, too.
    pub(crate) fn start_family(&mut self, index: usize, script: &str) -> (i32, Vec<i32>) {
        let pid = self.start(index, script);
        let family: Vec<i32> = self.printed().split(' ').map(|pid| pid.parse().unwrap()).collect();
        self.families.extend(&family);
        (pid, family)
    }

    pub(crate) fn agent(&self) -> i32 {
        self.agent.id() as i32
    }

    /// Kills the agent as `kill -9` does.
    pub(crate) fn kill_agent(mut self) {
        self.agent.kill().unwrap();
        self.agent.wait().unwrap();
    }

    /// Ends the agent properly.
    pub(crate) fn close(mut self) {
        assert_eq!(self.ask("close"), "closed");
        drop(self.input.take());
        assert!(self.agent.wait().unwrap().success());
    }
}

impl Drop for Scene {
    /// After a failed test, which may have failed because these live on.
    fn drop(&mut self) {
        let _ = self.agent.kill();
        let _ = self.agent.wait();
        if thread::panicking() {
            let lost = self.families.iter().filter(|pid| lives(**pid));
            lost.for_each(|pid| signal(*pid, rustix::process::Signal::KILL));
        }
    }
}

pub(crate) fn signal(pid: i32, signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// The state letter of a process (proc(5)); `None` if there is none.
pub(crate) fn state(pid: i32) -> Option<char> {
    Some(Stat::of(pid)?.state)
}

pub(crate) fn lives(pid: i32) -> bool {
    state(pid).is_some_and(|state| state != 'Z')
}

/// Waits until something that another process does on its own has happened.
pub(crate) fn until(what: &str, happened: impl Fn() -> bool) {
    lockstep_watchdog::until(happened).unwrap_or_else(|why| panic!("in vain: {what}: {why}"));
}

pub(crate) fn until_gone(pids: &[i32]) {
    until(&format!("the end of {pids:?}"), || !pids.iter().any(|pid| lives(*pid)));
}

/// The agent's reaper.
pub(crate) fn reaper_of(agent: i32) -> i32 {
    reaper_other_than(0, agent)
}

/// The agent's reaper, once it is another one than this.
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
