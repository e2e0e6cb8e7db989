//! The stacks of another process's threads, read by py-spy, gdb or eu-stack, whichever is installed.
//!
//! The process goes on running: it is held only while a tool reads it. A tool that takes too long is given up.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use thiserror::Error;

use super::proc::{Stat, executable, is_python, threads};
use super::{Group, Outcome, Signals, Standstill, find_program};

/// The longest output of a tool that is read, in bytes.
const LONGEST: u64 = 1 << 20;
/// How long a process waits in the kernel before no tool is tried on it.
const IN_KERNEL: Duration = Duration::from_secs(1);
/// The number of frames in the short form.
const FRAMES: usize = 12;

/// A program that reads stacks.
struct Tool {
    name: &'static str,
    /// Reads Python's stacks only.
    python: bool,
    /// Its arguments before the process id.
    before: &'static [&'static str],
    /// Its arguments after it.
    after: &'static [&'static str],
    /// Begins the stack of the main thread, at the start of a line or later in it.
    main_thread: &'static str,
}

/// In the order in which they are tried.
const TOOLS: [Tool; 3] = [
    Tool { name: "py-spy", python: true, before: &["dump", "--pid"], after: &[], main_thread: "\"MainThread\"" },
    Tool {
        name: "gdb",
        python: false,
        before: &["-nx", "-batch", "-p"],
        after: &["-ex", "set pagination off", "-ex", "thread apply all backtrace 40"],
        main_thread: "Thread 1 (",
    },
    Tool { name: "eu-stack", python: false, before: &["-p"], after: &[], main_thread: "TID " },
];

/// What could be learned of a process's stacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stacks {
    /// A tool has read them.
    Read {
        /// Its name.
        tool: &'static str,
        /// Its output.
        text: String,
    },
    /// The process waits in the kernel, so that a tool would wait, too.
    InKernel(Standstill),
    /// No tool could read them.
    Unread {
        /// Why each tool failed, in one line; `None` if none is installed.
        failed: Option<String>,
        /// The states of its threads, one a line.
        threads: String,
    },
}

/// Why the search for stacks ended.
#[derive(Debug, Error)]
pub enum StacksError {
    /// The system's error.
    #[error("cannot {what}")]
    System {
        /// What failed.
        what: String,
        /// The error.
        source: io::Error,
    },
    /// A signal asked this process to end.
    #[error("stopped by signal {0}")]
    Signalled(i32),
}

/// Returns true if PATH has it.
fn is_installed(tool: &&Tool) -> bool {
    find_program(tool.name.as_ref(), std::env::var_os("PATH").as_deref()).is_ok()
}

impl Stacks {
    /// Returns true if any of the tools is installed.
    pub fn has_tool() -> bool {
        TOOLS.iter().any(|tool| is_installed(&tool))
    }

    /// Reads the stacks of a process, with `limit` for each tool.
    ///
    /// # Errors
    /// If the tools cannot be run at all, or a signal arrives meanwhile.
    pub fn of(pid: i32, limit: Duration, signals: &Signals) -> Result<Self, StacksError> {
        // Attaching to it would wait for what it waits for.
        if let Some(at) = Standstill::in_kernel_for(pid, IN_KERNEL) {
            return Ok(Stacks::InKernel(at));
        }
        let runs_python = executable(pid).is_some_and(|name| is_python(&name));
        let mut failed = Vec::new();
        for tool in TOOLS.iter().filter(|tool| runs_python || !tool.python).filter(is_installed) {
            match ask(tool, pid, limit, signals)? {
                Ok(text) => return Ok(Stacks::Read { tool: tool.name, text }),
                Err(why) => failed.push(format!("{} failed: {why}", tool.name)),
            }
        }
        let line = |thread: Stat| format!("thread {} {}: state {}\n", thread.pid, thread.name, thread.state);
        let threads = threads(pid).into_iter().map(line).collect();
        Ok(Stacks::Unread { failed: (!failed.is_empty()).then(|| failed.join("; ")), threads })
    }

    /// The innermost frames of the main thread, without addresses and arguments, so that ranks in the same place are equal.
    pub fn innermost(&self) -> Vec<String> {
        let Stacks::Read { tool, text } = self else { return vec![] };
        let mark = TOOLS.iter().find(|known| known.name == *tool).map_or("", |known| known.main_thread);
        let lines = text.lines().skip_while(|line| !line.contains(mark)).skip(1);
        let frames = lines.take_while(|line| !line.trim().is_empty() && !line.starts_with(['[', 'T']));
        frames.take(FRAMES).map(short).collect()
    }
}

/// `#1  0x7f… in f (x=1) at a.c:3` becomes `f at a.c:3`; py-spy's frames stay as they are.
fn short(frame: &str) -> String {
    let frame = frame.trim();
    let Some(numbered) = frame.strip_prefix('#') else { return frame.to_owned() };
    let text = numbered.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start();
    let text = match text.strip_prefix("0x") {
        Some(rest) => rest.split_once(' ').map_or("", |(_, rest)| rest.trim_start().trim_start_matches("in ")),
        None => text,
    };
    let place = text.rfind(") at ").or_else(|| text.rfind(") from ")).map_or("", |at| &text[at + 1..]);
    format!("{}{place}", text.split(" (").next().unwrap_or_default())
}

impl fmt::Display for Stacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stacks::Read { tool, text } => write!(f, "by {tool}:\n{text}"),
            Stacks::InKernel(at) => at.fmt(f),
            Stacks::Unread { failed, threads } => {
                let why = failed.as_deref().unwrap_or("neither py-spy (for Python) nor gdb nor eu-stack is installed");
                write!(f, "{why}; its threads:\n{threads}")
            }
        }
    }
}

/// The last line of what a tool that failed has printed.
fn last_line(text: &str) -> &str {
    text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("it printed nothing")
}

/// A tool's output, or why it failed, in one line.
fn ask(tool: &Tool, pid: i32, limit: Duration, signals: &Signals) -> Result<Result<String, String>, StacksError> {
    let cannot = |what: String| move |source: io::Error| StacksError::System { what, source };
    let memory = || "use memory for a tool's output".to_owned();
    let output = memfd_create("stacks", MemfdFlags::CLOEXEC).map_err(|error| cannot(memory())(error.into()))?;
    let mut output = File::from(output);
    let copy = |file: &File| file.try_clone().map_err(cannot(memory()));
    let mut command = Command::new(tool.name);
    command.args(tool.before).arg(pid.to_string()).args(tool.after);
    command.stdin(Stdio::null()).stdout(copy(&output)?).stderr(copy(&output)?);
    let group = Group::start(&mut command).map_err(cannot(format!("start {}", tool.name)))?;
    let outcome = group.finish(Instant::now() + limit, signals).map_err(cannot(format!("wait for {}", tool.name)))?;
    let mut bytes = Vec::new();
    output
        .rewind()
        .and_then(|()| output.take(LONGEST).read_to_end(&mut bytes))
        .map_err(cannot(format!("read {}'s output", tool.name)))?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    match outcome {
        Outcome::Ended(status) if status.success() => Ok(Ok(text)),
        Outcome::Ended(status) => Ok(Err(format!("{status}: {}", last_line(&text)))),
        Outcome::TimedOut => Ok(Err(format!("no answer within {} s", limit.as_secs()))),
        Outcome::Signalled(signal) => Err(StacksError::Signalled(signal)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(tool: &'static str, text: &str) -> Vec<String> {
        Stacks::Read { tool, text: text.to_owned() }.innermost()
    }

    #[test]
    fn shortens_what_each_tool_prints_to_the_main_threads_frames() {
        let py_spy = "Process 7: python train.py\nPython v3.11.2 (/usr/bin/python3.11)\n\nThread 8 (idle): \"loader\"\n    get (queue.py:1)\n\n\
                      Thread 7 (idle): \"MainThread\"\n    all_reduce (distributed_c10d.py:2501)\n    <module> (train.py:9)\n\nThread 9 (idle): \"x\"\n    y (z.py:1)\n";
        assert_eq!(read("py-spy", py_spy), ["all_reduce (distributed_c10d.py:2501)", "<module> (train.py:9)"]);
        let gdb = "[New LWP 8]\n\nThread 2 (Thread 0x7f (LWP 8) \"x\"):\n#0  clone3 () at clone3.S:81\n\nThread 1 (Thread 0x7f (LWP 7) \"x\"):\n\
                   #0  0x00007f559f1f312f in __poll (fds=0x7f, n=(1)) at ./poll.c:29\n#1  0x00007f5 in gloo::wait(int) () from /lib/libtorch.so\n#2  main (n=<optimized out>) at a.c:3\n[Inferior 1 (process 7) detached]\n";
        assert_eq!(
            read("gdb", gdb),
            ["__poll at ./poll.c:29", "gloo::wait(int) from /lib/libtorch.so", "main at a.c:3"]
        );
        let eu_stack =
            "PID 7 - process\nTID 7:\n#0  0x00007f559f1f312f wait4\n#1  0x000055d main\nTID 8:\n#0  0x1 other\n";
        assert_eq!(read("eu-stack", eu_stack), ["wait4", "main"]);
        let unread = Stacks::Unread { failed: None, threads: String::new() };
        assert_eq!(read("gdb", "").len() + unread.innermost().len(), 0);
    }

    #[test]
    fn shows_the_threads_where_no_tool_has_read_them() {
        let shown = |failed: Option<&str>| {
            Stacks::Unread { failed: failed.map(str::to_owned), threads: "thread 7 x: state S\n".into() }.to_string()
        };
        assert_eq!(
            shown(None),
            "neither py-spy (for Python) nor gdb nor eu-stack is installed; its threads:\nthread 7 x: state S\n"
        );
        assert_eq!(
            shown(Some("gdb failed: exit status: 1: no permission")),
            "gdb failed: exit status: 1: no permission; its threads:\nthread 7 x: state S\n"
        );
        assert_eq!(last_line("Could not attach\n  ptrace: not permitted. \n\n"), "ptrace: not permitted.");
        assert_eq!(last_line(" \n"), "it printed nothing");
    }
}
