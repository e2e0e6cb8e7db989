//! The stacks of another process's threads, read by py-spy, gdb or eu-stack, whichever is installed.
//!
//! The process goes on running: it is held only while a tool reads it. A tool that takes too long is killed, and what it has stopped is
//! continued. [`NoProgress`] says why a process makes none: it is stopped, traced, or waits in the kernel, where not even SIGKILL can end it.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use thiserror::Error;

use crate::proc::{Stat, Status, executable, is_python, threads};
use crate::{Group, Outcome, Signals, find_program};

/// The longest output of a tool that is read, in bytes.
const LONGEST: u64 = 1 << 20;
/// A process that has waited in the kernel for this long is not given to a tool.
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
    /// The text that begins the main thread's stack, anywhere in a line.
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

/// The result of reading a process's stacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stacks {
    /// A tool has read them.
    Read { tool: &'static str, text: String },
    /// The process waits in the kernel, so that a tool would wait, too.
    InKernel(NoProgress),
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
    #[error("cannot {what}")]
    System { what: String, source: io::Error },
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
        // A tool that attaches would wait as long as the process does.
        if let Some(at) = NoProgress::in_kernel_for(pid, IN_KERNEL) {
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
    let held = Held::of(pid);
    let group = Group::start(&mut command).map_err(cannot(format!("start {}", tool.name)))?;
    let outcome = group.finish(Instant::now() + limit, signals).map_err(cannot(format!("wait for {}", tool.name)));
    if !matches!(&outcome, Ok(Outcome::Ended(status)) if status.success()) {
        held.go_on();
    }
    let outcome = outcome?;
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

/// A process that a tool may stop. A tool that is killed between attaching, which sends SIGSTOP, and its first wait leaves the process
/// stopped: see ptrace(2).
struct Held(Option<OwnedFd>);

impl Held {
    /// One that was stopped before the tool came stays so.
    fn of(pid: i32) -> Self {
        let is_stopped = Stat::of(pid).is_none_or(|stat| stat.state == 'T');
        let open = || pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok();
        Held(if is_stopped { None } else { open() })
    }

    /// After the tool's end; also takes back a SIGSTOP that has not arrived.
    fn go_on(&self) {
        if let Some(process) = &self.0 {
            // An error means that it has ended, or belongs to somebody else, whom the tool could not stop either.
            let _ = pidfd_send_signal(process, Signal::CONT);
        }
    }
}

/// Interval between two looks at a process that waits in the kernel.
const POLL: Duration = Duration::from_millis(10);

/// Why a process makes no progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoProgress {
    /// `T`, `t` or `D`, as in proc_pid_stat(5).
    pub state: char,
    /// The kernel function in which it waits, if this user may see it.
    pub wait_channel: Option<String>,
    /// The file that it waits for, if its system call names one.
    pub file: Option<PathBuf>,
    /// The process that traces it, such as a debugger, with its program's name.
    pub tracer: Option<(i32, String)>,
}

impl NoProgress {
    /// Why this process makes no progress; `None` if it can run, sleeps, or has ended.
    pub fn of(pid: i32) -> Option<Self> {
        let waits = |stat: &Stat| matches!(stat.state, 'T' | 't' | 'D');
        let main = Stat::of(pid)?;
        // The thread that waits in the kernel need not be the main one.
        let thread = if waits(&main) { main } else { threads(pid).into_iter().find(|stat| stat.state == 'D')? };
        let tracer = Status::of(thread.pid).and_then(|status| status.number("TracerPid")).filter(|tracer| *tracer != 0);
        let named = |tracer: u64| Some((i32::try_from(tracer).ok()?, Stat::of(i32::try_from(tracer).ok()?)?.name));
        let in_task = |file: &str| fs::read_to_string(format!("/proc/{pid}/task/{}/{file}", thread.pid)).ok();
        let channel = in_task("wchan").filter(|name| !name.is_empty() && name != "0");
        let file = in_task("syscall")
            .and_then(|call| descriptor(&call))
            .and_then(|number| fs::read_link(format!("/proc/{pid}/fd/{number}")).ok());
        Some(NoProgress { state: thread.state, wait_channel: channel, file, tracer: tracer.and_then(named) })
    }

    /// Watches for this period whether a process waits in the kernel; `None` as soon as it does not. A short wait there is common: for
    /// a disk, or for a child that was just started.
    pub fn in_kernel_for(pid: i32, period: Duration) -> Option<Self> {
        let lasts = lasts(period, || waits_in_kernel(pid));
        Self::of(pid).filter(|at| lasts && at.in_kernel())
    }

    /// Returns true if it waits in the kernel, so that signals do not reach it.
    pub fn in_kernel(&self) -> bool {
        self.state == 'D'
    }
}

/// The threads of a process that wait in the kernel, and how often each has waited anywhere.
fn waits_in_kernel(pid: i32) -> BTreeSet<(i32, u64)> {
    let waiting = threads(pid).into_iter().filter(|stat| stat.state == 'D');
    let counted = |stat: Stat| Some((stat.pid, Status::of(stat.pid)?.number("voluntary_ctxt_switches")?));
    waiting.filter_map(counted).collect()
}

/// Returns true if the same wait is seen in every look of this period.
fn lasts(period: Duration, mut look: impl FnMut() -> BTreeSet<(i32, u64)>) -> bool {
    let deadline = Instant::now() + period;
    let mut waits = look();
    while !waits.is_empty() && Instant::now() < deadline {
        sleep(POLL);
        let now = look();
        waits.retain(|wait| now.contains(wait));
    }
    !waits.is_empty()
}

/// The file descriptor that is the first argument of a system call: `0 0x3 0x7f… …`.
fn descriptor(call: &str) -> Option<u32> {
    const WITH_DESCRIPTOR: [libc::c_long; 11] = [
        libc::SYS_read,
        libc::SYS_write,
        libc::SYS_fstat,
        libc::SYS_ioctl,
        libc::SYS_pread64,
        libc::SYS_pwrite64,
        libc::SYS_readv,
        libc::SYS_writev,
        libc::SYS_fsync,
        libc::SYS_fdatasync,
        libc::SYS_getdents64,
    ];
    let mut fields = call.split_whitespace();
    let number = fields.next()?.parse().ok()?;
    let known = WITH_DESCRIPTOR.contains(&number);
    u32::from_str_radix(fields.next()?.strip_prefix("0x")?, 16).ok().filter(|_| known)
}

impl fmt::Display for NoProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.tracer, self.state) {
            (Some((pid, name)), _) if self.state != 'D' => {
                write!(f, "it is stopped by {name} (pid {pid}), which traces it")?
            }
            (_, 'D') => f.write_str("it waits in the kernel, where no signal reaches it (state D)")?,
            _ => f.write_str("it is stopped by a signal (SIGSTOP, or Ctrl-Z)")?,
        }
        if let Some(channel) = self.wait_channel.as_ref().filter(|_| self.in_kernel()) {
            write!(f, ", in {channel}")?;
        }
        match self.file.as_ref().filter(|_| self.in_kernel()) {
            Some(file) => write!(f, ", for {}", file.display()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::kill_process;

    use super::*;
    use crate::KillOnDrop;

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

    #[test]
    fn reads_the_descriptor_of_a_system_call_that_has_one() {
        let read = format!("{} 0x3 0x7ffc 0x400 0x0 0x0 0x0 0x7ffc 0x7f01\n", libc::SYS_read);
        let wait = format!("{} 0x3 0x0", libc::SYS_futex);
        assert_eq!((descriptor(&read), descriptor(&wait)), (Some(3), None));
        assert_eq!((descriptor("running\n"), descriptor("-1 0x7ffc 0x7f")), (None, None));
    }

    #[test]
    fn describes_where_a_process_waits() {
        let base = NoProgress {
            state: 'D',
            wait_channel: Some("nfs_wait".into()),
            file: Some("/data/1".into()),
            tracer: None,
        };
        assert_eq!(
            base.to_string(),
            "it waits in the kernel, where no signal reaches it (state D), in nfs_wait, for /data/1"
        );
        let traced = NoProgress { state: 't', tracer: Some((7, "gdb".into())), ..base.clone() };
        assert_eq!(traced.to_string(), "it is stopped by gdb (pid 7), which traces it");
        let stopped = NoProgress { state: 'T', ..base };
        assert_eq!(stopped.to_string(), "it is stopped by a signal (SIGSTOP, or Ctrl-Z)");
    }

    #[test]
    fn one_wait_in_the_kernel_lasts_and_many_short_ones_do_not() {
        let period = Duration::from_millis(50);
        assert!(lasts(period, || BTreeSet::from([(7, 1), (8, 1)])));
        assert!(!lasts(period, BTreeSet::new));
        let mut waits = 0;
        let short = || {
            waits += 1;
            BTreeSet::from([(7, waits)])
        };
        assert!(!lasts(Duration::from_secs(1000), short));
        assert_eq!(waits, 2, "the second look ends it");
    }

    /// A process that sleeps, and its id.
    fn sleeper() -> (KillOnDrop, i32) {
        let child = KillOnDrop(Command::new("sleep").arg("1000").spawn().unwrap());
        let pid = child.0.id() as i32;
        await_state(pid, |stat| stat.state == 'S' && stat.name == "sleep");
        (child, pid)
    }

    fn await_state(pid: i32, is: impl Fn(&Stat) -> bool) {
        crate::watchdog::until(|| Stat::of(pid).as_ref().is_some_and(&is)).unwrap();
    }

    #[test]
    fn tells_a_stopped_process_from_a_sleeping_one() {
        let (_child, pid) = sleeper();
        assert_eq!(NoProgress::of(pid), None);
        kill_process(Pid::from_raw(pid).unwrap(), Signal::STOP).unwrap();
        await_state(pid, |stat| stat.state == 'T');
        assert_eq!(NoProgress::of(pid).map(|at| at.state), Some('T'));
        assert_eq!(NoProgress::of(i32::MAX), None);
    }

    /// A tool that fails while it holds the process, as one that is killed at its deadline does.
    const STOPS: Tool =
        Tool { name: "sh", python: false, before: &["-c", "kill -STOP $0; exit 3"], after: &[], main_thread: "" };

    #[test]
    fn a_process_goes_on_after_a_tool_that_has_failed() {
        let (_child, pid) = sleeper();
        let failed = || ask(&STOPS, pid, Duration::from_secs(1000), &Signals::default()).unwrap().unwrap_err();
        assert!(failed().starts_with("exit status: 3"));
        await_state(pid, |stat| stat.state == 'S');
        // What somebody else has stopped stays so.
        kill_process(Pid::from_raw(pid).unwrap(), Signal::STOP).unwrap();
        await_state(pid, |stat| stat.state == 'T');
        failed();
        assert_eq!(NoProgress::of(pid).map(|at| at.state), Some('T'));
    }
}
