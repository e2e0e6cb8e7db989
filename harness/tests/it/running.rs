//! A command in the background: its output as it arrives, its end, and signals to it.

use std::fmt;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use lockstep_launch::command::quoted;
use lockstep_process::KillOnDrop;
use lockstep_process::watchdog::{Stalled, Watchdog};
use rustix::process::{Pid, Signal, kill_process};

/// How long to wait for output between two checks of the processes.
const PAUSE: Duration = Duration::from_millis(500);

/// The command as a word of a line of shell.
pub(crate) fn lockstep() -> String {
    quoted(assert_cmd::cargo::cargo_bin!("lockstep").to_str().unwrap())
}

pub(crate) struct Running {
    child: KillOnDrop,
    pub(crate) out: Text,
    pub(crate) err: Text,
}

/// How a command ended, and all its output.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) out: String,
    pub(crate) err: String,
    pub(crate) raw: Vec<u8>,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = as_anywhere(&mut command).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (out, err) = (Text::of(child.stdout.take().unwrap()), Text::of(child.stderr.take().unwrap()));
        Running { child: KillOnDrop(child), out, err }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.0.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child.0), signal).unwrap();
    }

    /// Waits until stdout contains this text this many times.
    pub(crate) fn await_out(&self, text: &str, times: usize) {
        self.await_in(&self.out, text, times);
    }

    /// Waits until stderr contains this text.
    pub(crate) fn await_err(&self, text: &str) {
        self.await_in(&self.err, text, 1);
    }

    /// Waits until this holds for stdout; false if it has ended before.
    pub(crate) fn prints(&self, holds: impl Fn(&str) -> bool) -> bool {
        self.out.until(holds).is_ok()
    }

    fn await_in(&self, place: &Text, text: &str, times: usize) {
        if let Err(why) = place.until(|output| output.matches(text).count() >= times) {
            panic!("`{text}` did not come {times} times: {why}\n{}", self.output());
        }
    }

    fn output(&self) -> String {
        format!("--- stdout\n{}\n--- stderr\n{}", self.out.now(), self.err.now())
    }

    pub(crate) fn write_stdin(&mut self, bytes: &[u8]) {
        let mut stdin = self.child.0.stdin.take().unwrap();
        stdin.write_all(bytes).unwrap();
    }

    /// Waits until it and every process that could write to its output have ended.
    pub(crate) fn ended(mut self) -> Ended {
        for text in [&self.out, &self.err] {
            if let Err(why) = text.wait(|gathered| gathered.closed) {
                panic!("something still holds the output: {why}\n{}", self.output());
            }
        }
        let status = self.child.0.wait().unwrap();
        Output { status, stdout: self.out.bytes(), stderr: self.err.bytes() }.into()
    }
}

/// Runs a command that ends by itself.
pub(crate) fn ended(command: &mut Command) -> Ended {
    as_anywhere(command).output().unwrap().into()
}

/// Without the width that somebody's shell asks for, unless the test sets it.
fn as_anywhere(command: &mut Command) -> &mut Command {
    let set = command.get_envs().any(|(name, _)| name == "COLUMNS");
    if set { command } else { command.env_remove("COLUMNS") }
}

impl Ended {
    /// Asserts that it ended by itself with this code.
    #[track_caller]
    pub(crate) fn code(self, code: i32) -> Self {
        assert_eq!(self.status.code(), Some(code), "{self}");
        self
    }

    #[track_caller]
    pub(crate) fn killed_by(self, signal: Signal) -> Self {
        assert_eq!(self.status.signal(), Some(signal.as_raw()), "{}", self.err);
        self
    }

    /// Asserts that stderr contains all these texts.
    #[track_caller]
    pub(crate) fn says(self, texts: &[&str]) -> Self {
        for text in texts {
            assert!(self.err.contains(text), "`{text}` is not in stderr:\n{}", self.err);
        }
        self
    }

    /// Asserts that stderr contains none of these texts.
    #[track_caller]
    pub(crate) fn never_says(self, texts: &[&str]) -> Self {
        for text in texts {
            assert!(!self.err.contains(text), "`{text}` is in stderr:\n{}", self.err);
        }
        self
    }

    /// The reason of its failure, from the end of stderr: the text before depends on the machine's speed.
    #[track_caller]
    pub(crate) fn failure(&self) -> &str {
        let starts = ["lockstep: failed: ", "error: ", "verdict: ", "=====", "usage: "];
        let mut at = 0;
        for line in self.err.split_inclusive('\n') {
            if starts.iter().any(|start| line.starts_with(start)) {
                return &self.err[at..];
            }
            at += line.len();
        }
        panic!("no failure is in stderr:\n{}", self.err)
    }

    /// The report of a failure without its frame and the lines that are in all of them.
    #[track_caller]
    pub(crate) fn failure_in_short(&self) -> String {
        let common =
            ["===", "---", "sh FAILED", "  time  ", "  host  ", "  error_file: <N/A>", "  traceback : To enable "];
        let told = |line: &&str| !common.iter().any(|start| line.starts_with(start));
        self.failure().split_inclusive('\n').filter(told).collect()
    }

    /// The lines of stdout, sorted.
    pub(crate) fn sorted(&self) -> Vec<&str> {
        let mut lines: Vec<&str> = self.out.lines().collect();
        lines.sort_unstable();
        lines
    }
}

impl From<Output> for Ended {
    fn from(Output { status, stdout, stderr }: Output) -> Self {
        let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ended { status, out: lossy(&stdout), err: lossy(&stderr), raw: stdout }
    }
}

/// The form for snapshots: how it ended and what it printed.
impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.status)?;
        for (name, text) in [("stdout", &self.out), ("stderr", &self.err)] {
            if !text.is_empty() {
                write!(f, "\n--- {name}\n{text}")?;
            }
        }
        Ok(())
    }
}

/// The output of a pipe so far, collected by a thread.
pub(crate) struct Text(Arc<(Mutex<Gathered>, Condvar)>);

#[derive(Default)]
struct Gathered {
    bytes: Vec<u8>,
    closed: bool,
}

impl Text {
    fn of(mut pipe: impl Read + Send + 'static) -> Self {
        let shared = Arc::new((Mutex::new(Gathered::default()), Condvar::new()));
        let text = Text(Arc::clone(&shared));
        thread::spawn(move || {
            let mut chunk = [0; 65536];
            loop {
                let read = pipe.read(&mut chunk).unwrap_or(0);
                let mut gathered = shared.0.lock().unwrap();
                gathered.bytes.extend_from_slice(&chunk[..read]);
                gathered.closed = read == 0;
                shared.1.notify_all();
                if read == 0 {
                    return;
                }
            }
        });
        text
    }

    fn bytes(&self) -> Vec<u8> {
        self.0.0.lock().unwrap().bytes.clone()
    }

    pub(crate) fn now(&self) -> String {
        String::from_utf8_lossy(&self.bytes()).into_owned()
    }

    /// Waits until it contains the expected text; panics if that is impossible.
    fn until(&self, holds: impl Fn(&str) -> bool) -> Result<(), String> {
        let text = |gathered: &Gathered| String::from_utf8_lossy(&gathered.bytes).into_owned();
        self.wait(|gathered| holds(&text(gathered)) || gathered.closed).map_err(|why| why.to_string())?;
        if holds(&self.now()) { Ok(()) } else { Err("the output is closed".to_owned()) }
    }

    fn wait(&self, over: impl Fn(&Gathered) -> bool) -> Result<(), Stalled> {
        let mut watchdog = Watchdog::new();
        let mut gathered = self.0.0.lock().unwrap();
        while !over(&gathered) {
            gathered = self.0.1.wait_timeout(gathered, PAUSE).unwrap().0;
            watchdog.look()?;
        }
        Ok(())
    }
}
