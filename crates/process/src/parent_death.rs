//! The parent-death signal: the kernel kills a process when its parent dies. The hidden subcommand `dies-with-parent`
//! requests the signal and becomes another program.
//!
//! The kernel keeps a parent-death signal over `exec`, so [`die_with_parent`] requests it after the process has started
//! and before its program does, where no unsafe code is needed. The subcommand is hidden because it is not for people.
//!
//! There are two forms: in a process group that the caller makes ([`dying_with_parent`]), or as the leader of a session
//! of its own ([`in_session`]), as torchrun's workers are. The second form starts with a socket as its standard input.
//! The process receives its real standard input through this socket, and sends the reason back if the program cannot be
//! started; a socket that just closes means that it was started. The second form also sets the soft limit on open
//! files, which the agent has raised for itself ([`super::open_files`]).

use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use anyhow::Context;
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal, setsid};

use super::{agent_id, descriptors, helper_command, open_files, program};

/// The name of the subcommand.
pub const DIES_WITH_PARENT: &str = "dies-with-parent";

const IN_GROUP: &str = "in-group";
const IN_SESSION: &str = "in-session";
/// Limit on the length of a reason, in bytes: two paths and a sentence fit.
const LONGEST_REASON: u64 = 16 << 10;

/// The command that starts `program` so that it dies with **this thread**, which must therefore be the main thread.
/// Arguments and environment are added as to any other command. This executable must pass [`DIES_WITH_PARENT`] on to
/// [`super::helper`].
pub fn dying_with_parent(program: &OsStr) -> Command {
    command(IN_GROUP.to_owned(), program)
}

/// Makes the kernel kill this process when its parent dies. Returns false if the parent is no longer `parent`: it may
/// have died before the request, and then the signal never comes.
///
/// # Errors
/// The system's error.
pub fn die_with_parent(parent: i32) -> io::Result<bool> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    Ok(Pid::as_raw(getppid()) == parent)
}

fn command(form: String, program: &OsStr) -> Command {
    let mut command = helper_command::command();
    command.arg(DIES_WITH_PARENT).arg(getpid().as_raw_pid().to_string()).arg(form).arg(program);
    command
}

/// Like [`dying_with_parent`], but as the leader of a session of its own, with `stdin` as its standard input. Pass the
/// socket to [`reason`] to learn why the program could not be started.
pub(super) fn in_session(
    program: &OsStr,
    stdin: BorrowedFd<'_>,
    open_files: Option<u64>,
) -> io::Result<(Command, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    descriptors::send(&ours, b".", &[stdin])?;
    ours.set_nonblocking(true)?;
    let form = open_files.map_or_else(|| IN_SESSION.to_owned(), |soft| format!("{IN_SESSION}:{soft}"));
    let mut command = command(form, program);
    command.stdin(Stdio::from(OwnedFd::from(theirs)));
    Ok((command, ours))
}

/// The reason why a program that has ended was never started; `None` if it was.
pub(super) fn reason(socket: &UnixStream) -> Option<String> {
    let mut reason = Vec::new();
    // Nothing written means that exec succeeded; an error is not a reason.
    let _ = socket.take(LONGEST_REASON).read_to_end(&mut reason);
    (!reason.is_empty()).then(|| String::from_utf8_lossy(&reason).into_owned())
}

/// Becomes the program that the arguments name.
///
/// # Errors
/// The program cannot be started. `Ok` if the agent has received the reason.
pub(super) fn exec(args: &[OsString]) -> anyhow::Result<()> {
    let [parent, form, program, args @ ..] = args else {
        anyhow::bail!("`{DIES_WITH_PARENT}` is not for people: use `lockstep run`")
    };
    let parent: i32 =
        parent.to_str().and_then(|pid| pid.parse().ok()).context("no process id of the parent was given")?;
    let form = form.to_str().unwrap_or_default();
    let (form, open_files) = form.split_once(':').map_or((form, None), |(form, soft)| (form, soft.parse().ok()));
    match form {
        IN_GROUP => become_program(parent, program, args).map(|never| match never {}),
        IN_SESSION => {
            let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
            let Err(error) = become_worker(&socket, parent, open_files, program, args);
            // If the agent has closed the socket, it is gone, and this process ends, too.
            let _ = (&socket).write_all(format!("{error:#}").as_bytes());
            Ok(())
        }
        _ => anyhow::bail!("`{DIES_WITH_PARENT}` knows `{IN_GROUP}` and `{IN_SESSION}`"),
    }
}

fn become_worker(
    socket: &UnixStream,
    parent: i32,
    open_files: Option<u64>,
    program: &OsStr,
    args: &[OsString],
) -> anyhow::Result<Infallible> {
    setsid().context("cannot begin a session")?;
    let received = descriptors::receive(socket, &mut [0]).context("cannot receive the standard input")?;
    let (_, [stdin]) = received.context("no standard input came")?;
    rustix::stdio::dup2_stdin(stdin).context("cannot set the standard input")?;
    agent_id::set_limit();
    open_files.map_or(Ok(()), open_files::set_soft).context("cannot set the limit of open files")?;
    become_program(parent, program, args)
}

fn become_program(parent: i32, program: &OsStr, args: &[OsString]) -> anyhow::Result<Infallible> {
    let asked = die_with_parent(parent).context("cannot request a signal at the parent's death")?;
    anyhow::ensure!(asked, "the process that started this one has ended");
    let file = program::find_program(program, std::env::var_os("PATH").as_deref())?;
    let error = Command::new(&file).arg0(program).args(args).exec();
    Err(program::explain(&file, error).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_just_closes_gives_no_reason() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        assert_eq!(reason(&ours), None);
        (&theirs).write_all(b"x is a folder").unwrap();
        drop(theirs);
        assert_eq!(reason(&ours), Some("x is a folder".into()));
    }

    #[test]
    fn refuses_arguments_that_a_person_might_give() {
        assert!(exec(&[]).unwrap_err().to_string().contains("use `lockstep run`"));
        let args = ["1", "loose", "true"].map(OsString::from);
        assert!(exec(&args).unwrap_err().to_string().contains("in-session"));
    }
}
