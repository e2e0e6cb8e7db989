//! Starts workers, and makes processes die with the process that starts them. All `unsafe` code of this crate is here.
//!
//! A worker is a fork of the agent that becomes its program. fork(2) copies only the thread that calls it: if another thread holds a lock
//! at that moment, such as the allocator's, it stays locked in the copy. So what the child does until it executes its program
//! ([`Start::become_worker`]) follows the rules of signal-safety(7). It makes system calls only, on memory that was prepared before the
//! fork. It allocates nothing, takes no lock and does not panic.
//!
//! The child executes its program when the agent watches it ([`StartReport::watched`]): workers whose ends were not watched from the
//! beginning could die in an order that nobody sees. If a step fails, the child sends the step and the error number through a socket and
//! ends. The socket closes without a message when the program is executed. The agent does not wait for either: a program on a network
//! file system may take long to start.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString, c_char};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::{mem, ptr};

use anyhow::Context;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::process::{
    Pid, Resource, Rlimit, Signal, chdir, getpid, getppid, getrlimit, set_parent_process_death_signal, setrlimit,
    setsid,
};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};

use super::orphans::{AGENT, AgentId};
use super::process::Handle;
use super::program::{Sink, Spec, Stdin, Variable, explain, files, find_program, refusal};

/// The subcommand that [`words_dying_with_parent`] calls.
pub(super) const DIES_WITH_PARENT: &str = "dies-with-parent";
/// The exit code of a process that could not become its program, as in a shell.
pub(super) const NOT_STARTED: u8 = 127;
/// Limit on the length of a reason, in bytes: two paths and a sentence fit.
const LONGEST_REASON: u64 = 16 << 10;
/// The highest signal number.
const SIGNALS: i32 = 64;

/// A worker that is ready to be forked. All memory that the child reads is here.
pub(super) struct Start {
    program: OsString,
    /// The worker's PATH.
    path: Option<OsString>,
    /// The files that may be the program, in the order of PATH.
    files: Vec<CString>,
    args: Words,
    env: Words,
    folder: Option<CString>,
    /// Standard input, output and error; `None` for the agent's own. Their numbers are greater than 2.
    streams: [Option<OwnedFd>; 3],
    /// Carries the id of the agent.
    locks: Rlimit,
    open_files: Option<Rlimit>,
}

/// An array of C strings that ends with a null pointer, for execve(2).
struct Words {
    pointers: Vec<*const c_char>,
    _owned: Vec<CString>,
}

/// What the child does, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Step {
    AskForSignal,
    CheckParent,
    BeginSession,
    SetStreams,
    EnterFolder,
    SetLimit,
    Execute,
}

const STEPS: [Step; 7] = [
    Step::AskForSignal,
    Step::CheckParent,
    Step::BeginSession,
    Step::SetStreams,
    Step::EnterFolder,
    Step::SetLimit,
    Step::Execute,
];

/// Why a worker's program was never started, once the worker has ended.
#[derive(Debug)]
pub(super) struct StartReport {
    socket: UnixStream,
    /// The program and the worker's PATH, for the reason; `None` for a copy of a template, which sends the reason as text.
    program: Option<(OsString, Option<OsString>)>,
}

impl Start {
    /// Prepares a worker of the agent with this id. `marker` is its value of [`AGENT`], `open_files` its soft limit on open files.
    ///
    /// # Errors
    /// A word or a variable contains a zero byte; a standard stream cannot be opened.
    pub(super) fn prepare(spec: Spec, id: AgentId, marker: OsString, open_files: Option<u64>) -> io::Result<Self> {
        let path = spec.path();
        let files = files(&spec.program, path.as_deref()).into_iter().map(|file| c_string(file.into()));
        let files = files.collect::<io::Result<_>>()?;
        let Spec { program, args, env, folder, stdin, stdout, stderr } = spec;
        Ok(Start {
            path,
            files,
            args: Words::new(std::iter::once(program.clone()).chain(args))?,
            program,
            env: environment(&env, marker)?,
            folder: folder.map(|folder| c_string(folder.into())).transpose()?,
            streams: [input(stdin)?, output(stdout)?, output(stderr)?],
            locks: soft_limit(Resource::Locks, id.lock_limit()),
            open_files: open_files.map(|soft| soft_limit(Resource::Nofile, soft)),
        })
    }

    /// Forks. The worker executes its program after [`StartReport::watched`]; whether that was possible is known when it has ended, from
    /// the report.
    ///
    /// # Errors
    /// The system has no room for another process, or no descriptor for it.
    pub(super) fn fork(self) -> io::Result<(Handle, StartReport)> {
        self.fork_of(getpid())
    }

    fn fork_of(self, parent: Pid) -> io::Result<(Handle, StartReport)> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let theirs = above_streams(theirs.into())?;
        let handle = Handle::of_new(|| {
            // While signals are blocked, no handler of the agent runs in the child.
            let mask = block_signals();
            // SAFETY: the child calls `become_worker`, which follows the rules of signal-safety(7) and does not return.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                // SAFETY: this is the child of a fork, which uses the agent's end no more, and the agent's signals are blocked.
                unsafe {
                    libc::close(ours.as_raw_fd()); // so that the agent's is the only one
                    self.become_worker(parent, theirs.as_fd(), &mask)
                }
            }
            // `from_raw` panics on the -1 of a fork that failed.
            let forked = if pid > 0 { Pid::from_raw(pid) } else { None };
            let forked = forked.ok_or_else(io::Error::last_os_error);
            set_mask(&mask);
            forked
        })?;
        Ok((handle, StartReport { socket: ours, program: Some((self.program, self.path)) }))
    }

    /// Becomes the program, or reports why that is impossible and ends.
    ///
    /// # Safety
    /// Call it in the child of a fork, with all signals blocked; `mask` is what was blocked before.
    unsafe fn become_worker(&self, parent: Pid, report: BorrowedFd<'_>, mask: &libc::sigset_t) -> ! {
        let settled =
            self.settle(parent).and_then(|()| await_watch(report).map_err(|errno| (Step::CheckParent, errno)));
        let (step, error) = match settled {
            Ok(()) => {
                // SAFETY: the caller's promise is the same.
                (Step::Execute, unsafe { self.execute(mask) })
            }
            Err((step, errno)) => (step, errno.raw_os_error()),
        };
        let [a, b, c, d] = error.to_ne_bytes();
        let message = [step as u8, a, b, c, d];
        // SAFETY: `message` lives until the call returns. _exit(2) runs nothing of the agent.
        unsafe {
            libc::write(report.as_raw_fd(), message.as_ptr().cast(), message.len());
            libc::_exit(NOT_STARTED.into())
        }
    }

    /// Everything before the program. Each call of rustix is one system call; none allocates.
    fn settle(&self, parent: Pid) -> Result<(), (Step, Errno)> {
        let at = |step: Step| move |errno: Errno| (step, errno);
        // The kernel kills this process when the agent's main thread ends. The agent may have ended before the request.
        set_parent_process_death_signal(Some(Signal::KILL)).map_err(at(Step::AskForSignal))?;
        if getppid() != Some(parent) {
            return Err((Step::CheckParent, Errno::SRCH));
        }
        setsid().map_err(at(Step::BeginSession))?;
        // Unlike the originals, these copies are not closed by exec.
        let [stdin, stdout, stderr] = &self.streams;
        stdin.as_ref().map_or(Ok(()), dup2_stdin).map_err(at(Step::SetStreams))?;
        stdout.as_ref().map_or(Ok(()), dup2_stdout).map_err(at(Step::SetStreams))?;
        stderr.as_ref().map_or(Ok(()), dup2_stderr).map_err(at(Step::SetStreams))?;
        if let Some(folder) = &self.folder {
            chdir(folder.as_c_str()).map_err(at(Step::EnterFolder))?;
        }
        // If this limit cannot be set, which is unusual, only the variable identifies the worker.
        let _ = setrlimit(Resource::Locks, self.locks);
        match &self.open_files {
            Some(limit) => setrlimit(Resource::Nofile, *limit).map_err(at(Step::SetLimit)),
            None => Ok(()),
        }
    }

    /// Executes the first file that is a program; returns the error number if none is.
    ///
    /// # Safety
    /// As for [`become_worker`](Self::become_worker).
    unsafe fn execute(&self, mask: &libc::sigset_t) -> i32 {
        // SAFETY: this is not the agent. A signal that has waited now does what it would do to any program.
        unsafe { default_signals() };
        set_mask(mask);
        let mut first = libc::ENOENT;
        for file in &self.files {
            // SAFETY: the strings belong to `self`, and both arrays end with a null pointer.
            unsafe { libc::execve(file.as_ptr(), self.args.pointers.as_ptr(), self.env.pointers.as_ptr()) };
            let error = io::Error::last_os_error().raw_os_error().unwrap_or(libc::ENOENT);
            // A file in a later folder of PATH may work. Otherwise the first file that exists has the reason.
            if first == libc::ENOENT && error != libc::ENOTDIR {
                first = error;
            }
        }
        first
    }
}

/// Waits in the child until the parent has called [`StartReport::watched`]. One system call, unless a signal interrupts it.
///
/// # Errors
/// `SRCH` if the parent has dropped the report.
pub(super) fn await_watch(report: BorrowedFd<'_>) -> Result<(), Errno> {
    match retry_on_intr(|| recv(report, &mut [0; 1], RecvFlags::empty()))?.1 {
        0 => Err(Errno::SRCH),
        _ => Ok(()),
    }
}

/// What the runtimes of Rust and Python ignore for themselves. Python, too, gives the programs that it starts the default.
const RUNTIMES: [libc::c_int; 2] = [libc::SIGPIPE, libc::SIGXFSZ];

/// Gives signals that the agent handles their default action. Ignored ones stay ignored, as by execve(2), except for those in [`RUNTIMES`].
///
/// # Safety
/// Call it in the child of a fork: in the agent it would undo the agent's handlers.
unsafe fn default_signals() {
    // SAFETY: the structures are plain data, for which zeros are valid: SIG_DFL, no flags, no mask.
    unsafe {
        let default: libc::sigaction = mem::zeroed();
        for signal in 1..=SIGNALS {
            let mut now: libc::sigaction = mem::zeroed();
            // The C library refuses the numbers that it keeps for itself.
            let known = libc::sigaction(signal, ptr::null(), &mut now) == 0;
            if known && (now.sa_sigaction != libc::SIG_IGN || RUNTIMES.contains(&signal)) {
                libc::sigaction(signal, &default, ptr::null_mut());
            }
        }
    }
}

/// Blocks all signals for this thread; returns those that were blocked before.
fn block_signals() -> libc::sigset_t {
    // SAFETY: both sets are plain data of this function. The call only fails for an unknown first argument.
    unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = (mem::zeroed(), mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        before
    }
}

/// Lets all signals through to this thread, and to the threads and workers that it starts from now on. A mask that the caller left, as some
/// batch systems and multi-threaded programs do, would keep away even SIGTERM and the news of a worker's end.
pub fn unblock_signals() {
    // SAFETY: the set is plain data of this function. The call only fails for an unknown first argument.
    unsafe {
        let mut none: libc::sigset_t = mem::zeroed();
        libc::sigemptyset(&mut none);
        set_mask(&none);
    }
}

/// Reads a limit, as [`getrlimit`] does, which panics where the call is refused.
pub(super) fn read_limit() -> io::Result<()> {
    // SAFETY: the structure is plain data of this function, for which zeros are valid, and is written by the call.
    let read = unsafe {
        let mut limit: libc::rlimit = mem::zeroed();
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit)
    };
    if read == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn set_mask(mask: &libc::sigset_t) {
    // SAFETY: the mask is initialized.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, ptr::null_mut()) };
}

impl Words {
    fn new(words: impl Iterator<Item = OsString>) -> io::Result<Self> {
        let owned: Vec<CString> = words.map(c_string).collect::<io::Result<_>>()?;
        let pointers = owned.iter().map(|word| word.as_ptr()).chain([ptr::null()]).collect();
        Ok(Words { pointers, _owned: owned })
    }
}

impl StartReport {
    /// The report of a template's copy, which writes the reason to the other end.
    pub(super) fn of_copy(socket: UnixStream) -> Self {
        StartReport { socket, program: None }
    }

    /// Lets the worker begin, whose end is watched now. It may have ended meanwhile.
    pub(super) fn watched(&self) {
        let _ = send(&self.socket, &[0], SendFlags::NOSIGNAL);
    }

    /// Returns true while the worker is still a copy of the process that started it, with that one's handlers of signals.
    pub(super) fn is_pending(&self) -> bool {
        recv(&self.socket, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT) == Err(Errno::AGAIN)
    }

    /// Why the program of an ended worker was never started; `None` if it was started.
    pub(super) fn reason(&self) -> Option<String> {
        let mut message = Vec::new();
        // Nothing written means that exec succeeded; an error is not a reason.
        let _ = (&self.socket).take(LONGEST_REASON).read_to_end(&mut message);
        match (&self.program, &message[..]) {
            (_, []) => None,
            (Some((program, path)), [step, errno @ ..]) => {
                let step = STEPS.get(usize::from(*step)).copied().unwrap_or(Step::Execute);
                let errno = errno.try_into().map_or(0, i32::from_ne_bytes);
                Some(step.reason(io::Error::from_raw_os_error(errno), program, path.as_deref()))
            }
            (None, text) => Some(String::from_utf8_lossy(text).into_owned()),
        }
    }
}

impl Step {
    fn reason(self, error: io::Error, program: &OsStr, path: Option<&OsStr>) -> String {
        let what = match self {
            Step::AskForSignal => "cannot request a signal at the parent's death",
            Step::CheckParent => return "the process that started this one has ended".to_owned(),
            Step::BeginSession => "cannot begin a session",
            Step::SetStreams => "cannot set the standard streams",
            Step::EnterFolder => "cannot enter its folder",
            Step::SetLimit => "cannot set the limit of open files",
            Step::Execute => {
                return match find_program(program, path) {
                    Ok(file) => explain(&file, error).to_string(),
                    Err(why) => why.to_string(),
                };
            }
        };
        let why = refusal(&error).map(|why| format!(": {why}")).unwrap_or_default();
        format!("{what}: {error}{why}")
    }
}

fn c_string(word: OsString) -> io::Result<CString> {
    CString::new(word.into_vec()).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
}

/// The agent's own environment with these changes and the marker.
fn environment(changes: &[Variable], marker: OsString) -> io::Result<Words> {
    let mut all: BTreeMap<OsString, OsString> = std::env::vars_os().collect();
    for (name, value) in changes {
        match value {
            Some(value) => drop(all.insert(name.clone(), value.clone())),
            None => drop(all.remove(name)),
        }
    }
    all.insert(AGENT.into(), marker);
    Words::new(all.into_iter().map(|(mut name, value)| {
        name.push("=");
        name.push(value);
        name
    }))
}

fn soft_limit(resource: Resource, soft: u64) -> Rlimit {
    Rlimit { current: Some(soft), maximum: getrlimit(resource).maximum }
}

fn input(stdin: Stdin) -> io::Result<Option<OwnedFd>> {
    // If the agent was started without a standard input, the worker's is empty.
    if stdin == Stdin::Inherit && rustix::io::fcntl_getfd(io::stdin()).is_ok() {
        return Ok(None);
    }
    Ok(Some(above_streams(File::open("/dev/null")?.into())?))
}

fn output(sink: Sink) -> io::Result<Option<OwnedFd>> {
    match sink {
        Sink::Inherit => Ok(None),
        Sink::Null => Ok(Some(above_streams(File::options().write(true).open("/dev/null")?.into())?)),
        Sink::Fd(fd) => Ok(Some(above_streams(fd)?)),
    }
}

/// The same file under a number that no standard stream has, so that setting one stream does not close another.
fn above_streams(fd: OwnedFd) -> io::Result<OwnedFd> {
    if fd.as_raw_fd() > 2 { Ok(fd) } else { Ok(rustix::io::fcntl_dupfd_cloexec(fd.as_fd(), 3)?) }
}

/// The kernel's link to this executable, for commands: it leads to the file that runs even if a rebuild has replaced that file. In another
/// process-id namespace it leads nowhere.
pub fn this_program() -> OsString {
    format!("/proc/{}/exe", std::process::id()).into()
}

/// The command that starts `program` so that it dies with **this thread**, which must therefore be the main thread, with a worker's signals.
/// Arguments and environment are added as to any other command.
pub fn dying_with_parent(program: &OsStr) -> Command {
    let mut command = Command::new(program);
    let parent = getpid().as_raw_pid();
    let ask = move || {
        // SAFETY: this is the child of a fork.
        unsafe { default_signals() };
        if die_with_parent(parent)? { Ok(()) } else { Err(Errno::SRCH.into()) }
    };
    // SAFETY: the closure makes only system calls and allocates nothing, as signal-safety(7) demands in the child of a fork.
    unsafe { command.pre_exec(ask) };
    command
}

/// Makes the kernel kill this process when its parent dies. Returns false if the parent is no longer `parent`: it may
/// have died before the request, and then the signal never comes.
pub fn die_with_parent(parent: i32) -> io::Result<bool> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    Ok(Pid::as_raw(getppid()) == parent)
}

/// The words after the path of this executable in a command line that starts `program` so that it dies with this thread. For programs that
/// other programs start in this process's place (`unshare`, `nsenter`): the kernel drops the request of [`dying_with_parent`] when they
/// change their user. The executable must call [`internal_main`](super::internal_main).
pub fn words_dying_with_parent(program: &OsStr) -> [OsString; 3] {
    [DIES_WITH_PARENT.into(), getpid().as_raw_pid().to_string().into(), program.into()]
}

/// The subcommand of [`words_dying_with_parent`]; returns only if the program cannot be started.
pub(super) fn become_program(args: &[OsString]) -> ExitCode {
    let Err(error) = try_become(args);
    lockstep_contract::warn(&format_args!("error: {error:#}"));
    ExitCode::from(NOT_STARTED)
}

fn try_become(args: &[OsString]) -> anyhow::Result<std::convert::Infallible> {
    let [parent, program, args @ ..] = args else { anyhow::bail!("`{DIES_WITH_PARENT}` is an internal command") };
    let parent = parent.to_str().and_then(|pid| pid.parse().ok()).context("no process id of the parent was given")?;
    let asked = die_with_parent(parent).context("cannot request a signal at the parent's death")?;
    anyhow::ensure!(asked, "the process that started this one has ended");
    let file: PathBuf = find_program(program, std::env::var_os("PATH").as_deref())?;
    let error = Command::new(&file).arg0(program).args(args).exec();
    Err(explain(&file, error).into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::{Exit, proc::Stat, process::reap};

    fn spec(words: &[&str]) -> Spec {
        let (program, args) = (words[0].into(), words[1..].iter().map(OsString::from).collect());
        let (stdin, stdout, stderr) = (Stdin::Null, Sink::Null, Sink::Null);
        Spec { program, args, env: vec![], folder: None, stdin, stdout, stderr }
    }

    /// How a worker of this test ended, and why its program was not started.
    fn end(spec: Spec, parent: Pid) -> (Option<Exit>, Option<String>) {
        let start = Start::prepare(spec, AgentId::random().unwrap(), "id".into(), None).unwrap();
        let (handle, report) = start.fork_of(parent).unwrap();
        report.watched();
        handle.wait_until(Instant::now() + Duration::from_secs(600));
        let ended = (handle.ended().unwrap(), report.reason());
        reap(handle.pid().as_raw_pid());
        ended
    }

    #[test]
    fn a_start_is_pending_until_the_program_is_executed_or_cannot_be() {
        for last_words in [&b""[..], b"why"] {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            let report = StartReport::of_copy(ours);
            assert!(report.is_pending());
            io::Write::write_all(&mut theirs, last_words).unwrap();
            drop(theirs);
            assert!(!report.is_pending());
            assert_eq!(report.reason().unwrap_or_default().as_bytes(), last_words);
        }
    }

    #[test]
    fn a_worker_ends_as_its_program_does() {
        assert_eq!(end(spec(&["sh", "-c", "exit 7"]), getpid()), (Some(Exit::Code(7)), None));
        assert_eq!(end(spec(&["sh", "-c", "kill -9 $$"]), getpid()), (Some(Exit::Signal(9)), None));
    }

    #[test]
    fn a_worker_begins_when_its_end_is_watched_and_never_if_it_is_not() {
        let forked =
            || Start::prepare(spec(&["true"]), AgentId::random().unwrap(), "id".into(), None).unwrap().fork().unwrap();
        let ended = |handle: &Handle| {
            handle.wait_until(Instant::now() + Duration::from_secs(600));
            let exit = handle.ended().unwrap();
            reap(handle.pid().as_raw_pid());
            exit
        };
        let (handle, report) = forked();
        // It sleeps, or it has ended.
        let asleep = || Stat::of(handle.pid().as_raw_pid()).filter(|stat| stat.state == 'S' || stat.is_dead());
        let stat = std::iter::repeat_with(asleep).flatten().next().unwrap();
        assert!(!stat.is_dead() && report.is_pending());
        report.watched();
        assert_eq!(ended(&handle), Some(Exit::Code(0)));
        let (handle, report) = forked();
        drop(report);
        assert_eq!(ended(&handle), Some(Exit::Code(NOT_STARTED.into())));
    }

    #[test]
    fn the_step_that_failed_is_reported_with_its_reason() {
        let ended = |why: &str| (Some(Exit::Code(127)), Some(why.to_owned()));
        let orphan = end(spec(&["true"]), Pid::INIT);
        assert_eq!(orphan, ended("the process that started this one has ended"));
        let nowhere = Spec { folder: Some("/no/such/folder".into()), ..spec(&["true"]) };
        assert_eq!(end(nowhere, getpid()), ended("cannot enter its folder: No such file or directory (os error 2)"));
        let (_, missing) = end(spec(&["no-such-program"]), getpid());
        assert!(missing.unwrap().starts_with("cannot find the program no-such-program in the folders of PATH"));
        let (_, folder) = end(spec(&["/tmp"]), getpid());
        assert_eq!(folder.unwrap(), "/tmp is a folder, not a program: give the path of a file in it");
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("script");
        std::fs::write(&script, "echo\n").unwrap();
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
        let (_, no_kind) = end(spec(&[script.to_str().unwrap()]), getpid());
        assert!(no_kind.unwrap().contains("it has no first line such as `#!/bin/sh`; add one"));
    }

    #[test]
    fn a_word_with_a_zero_byte_is_refused_before_the_fork() {
        let start = Start::prepare(spec(&["true", "a\0b"]), AgentId::random().unwrap(), "id".into(), None);
        assert_eq!(start.err().unwrap().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn a_command_that_cannot_start_has_the_systems_error() {
        let error = dying_with_parent(OsStr::new("/no/such/program")).spawn().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
    }

    #[test]
    fn refuses_arguments_that_a_person_might_give() {
        assert!(try_become(&[]).unwrap_err().to_string().contains("internal command"));
        let args = ["2147483647", "true"].map(OsString::from);
        assert!(try_become(&args).unwrap_err().to_string().contains("has ended"));
    }

    #[test]
    fn each_step_comes_back_from_its_number() {
        assert!(STEPS.iter().enumerate().all(|(number, step)| *step as usize == number));
    }
}
