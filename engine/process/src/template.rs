//! Copies of a program that is ready to work, instead of new starts of it.
//!
//! Some programs take longer to start than their work takes: libtorch registers thousands of operators before `main`. A [`Template`] is
//! such a program, with one thread, that has done this once and nothing else. It [serves](serve) requests from the process that started
//! it by forking. Each copy has its own environment, folder, output and session.
//!
//! The program forks twice. The intermediate process ends at once, so that the kernel makes the copy a child of the nearest
//! subreaper: the process that keeps the [`Workers`](super::Workers), which sees the copy's end as that of a worker that it has
//! started itself.
//!
//! One request is one packet on the template's standard input: the folder and the environment, with descriptors for the reason why no
//! copy could be made, the standard output and the error output. The answer is the copy's process id.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use rustix::process::{Pid, Signal, WaitOptions, getpid, getppid, setsid, waitpid};

use super::process::wait_until;
use super::program::{Variable, set_variables};
use super::start::{StartReport, await_watch, die_with_parent, dying_with_parent};
use super::{Process, Sink, files, orphans};

/// A variable that tells a program to [`serve`].
const TEMPLATE: &str = "LOCKSTEP_TEMPLATE";
/// How long a template may take to answer. A fork takes milliseconds.
const ANSWER: Duration = Duration::from_secs(60);
/// The longest request, in bytes: an environment has some thousand.
const LONGEST: usize = 128 << 10;
/// Answers in place of a process id.
const READY: i32 = 0;
const NO_COPY: i32 = -1;

/// A program that has started and waits for requests. It ends when it is dropped, and with the main thread of this process.
#[derive(Debug)]
pub struct Template {
    process: Process,
    socket: OwnedFd,
}

impl Template {
    /// Starts a program that calls [`serve`], and waits until it does or has ended.
    ///
    /// Start it before any [`Workers`](super::Workers), which would take it for a process that a worker has left behind.
    ///
    /// # Errors
    /// The system's error; the program has ended, or did not answer within a minute.
    pub fn start(program: &OsStr, args: &[OsString], env: &[Variable]) -> io::Result<Self> {
        let (socket, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let mut command = dying_with_parent(program);
        command.args(args);
        set_variables(&mut command, env);
        command.env(TEMPLATE, "1").stdin(Stdio::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
        let template = Template { process: Process::start(&mut command)?, socket };
        drop(command); // with its end of the socket, so that the end of the program is seen
        match template.answer()? {
            READY => Ok(template),
            other => Err(io::Error::other(format!("{} does not wait for requests: {other}", program.display()))),
        }
    }

    /// Makes a copy, which begins after [`StartReport::watched`]: its process id, and why it could not begin.
    pub(super) fn copy(
        &self,
        env: &[Variable],
        folder: Option<&Path>,
        [stdout, stderr]: [Sink; 2],
    ) -> io::Result<(Pid, StartReport)> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let [stdout, stderr] = [descriptor(stdout, io::stdout())?, descriptor(stderr, io::stderr())?];
        let request = packed(folder, env);
        if request.len() > LONGEST {
            return Err(io::Error::other(format!("an environment of {} bytes is too long for a copy", request.len())));
        }
        files::send(&self.socket, &request, &[theirs.as_fd(), stdout.as_fd(), stderr.as_fd()])?;
        match self.answer()? {
            NO_COPY => Err(io::Error::other("the program could not make a copy that is a child of this process")),
            pid => {
                let pid = Pid::from_raw(pid).ok_or_else(|| io::Error::other("no process id"))?;
                Ok((pid, StartReport::of_copy(ours)))
            }
        }
    }

    fn answer(&self) -> io::Result<i32> {
        let mut bytes = [0; 4];
        wait_until(&self.socket, Instant::now() + ANSWER);
        match recv(&self.socket, &mut bytes, RecvFlags::DONTWAIT)?.1 {
            4 => Ok(i32::from_ne_bytes(bytes)),
            _ => Err(io::Error::other("the program has ended")),
        }
    }
}

impl Drop for Template {
    fn drop(&mut self) {
        // A template holds no work that could be lost. It may have been reaped already, so errors are ignored.
        let _ = self.process.signal(Signal::KILL);
        let _ = self.process.child.wait();
    }
}

/// Functions that the program supplies, because they are unsafe in a process with several threads.
#[derive(Clone, Copy, Debug)]
pub struct Forking {
    /// fork(2): the child's process id, or `None` in the child.
    pub fork: fn() -> io::Result<Option<Pid>>,
    /// Changes the environment of this process: sets each variable to its value, or removes it.
    pub set_variables: fn(&[(OsString, Option<OsString>)]),
    /// Ends this process without the cleanup that follows `main`.
    pub exit: fn(i32) -> !,
}

/// Waits for requests if this process was started as a [`Template`]. Returns true in each copy, and immediately in any other
/// process; false when the agent has gone. Call it at the beginning of `main`, before anything starts a thread.
///
/// # Errors
/// The system's error: the standard input is not the agent's socket.
pub fn serve(forking: &Forking) -> io::Result<bool> {
    if std::env::var_os(TEMPLATE).is_none() {
        return Ok(true);
    }
    (forking.set_variables)(&[(TEMPLATE.into(), None)]);
    let (socket, agent) = (io::stdin().as_fd().try_clone_to_owned()?, getppid());
    tell(&socket, READY)?;
    while let Some(request) = Request::receive(&socket)? {
        let Some(between) = (forking.fork)()? else {
            let parent = getpid();
            match (forking.fork)() {
                Ok(Some(_)) => (forking.exit)(0),
                Ok(None) => return begin(request, parent, agent, socket, forking),
                Err(_) => (forking.exit)(1),
            }
        };
        let ended = waitpid(Some(between), WaitOptions::empty())?;
        if ended.and_then(|(_, status)| status.exit_status()) != Some(0) {
            tell(&socket, NO_COPY)?;
        }
    }
    Ok(false)
}

/// Applies the request to this process, which is a copy.
fn begin(request: Request, parent: Pid, agent: Option<Pid>, socket: OwnedFd, forking: &Forking) -> io::Result<bool> {
    while getppid() == Some(parent) {
        std::thread::yield_now(); // the process between ends
    }
    if getppid() != agent {
        // The agent has ended, or adopts no orphans, as under some emulators.
        drop(tell(&socket, NO_COPY));
        (forking.exit)(127);
    }
    tell(&socket, getpid().as_raw_pid())?;
    drop(socket);
    if let Err(error) = request.settle(agent, forking) {
        // If the agent has closed the socket, it is gone.
        let _ = (&request.started).write_all(error.to_string().as_bytes());
        (forking.exit)(127);
    }
    Ok(true)
}

fn tell(socket: &OwnedFd, number: i32) -> io::Result<()> {
    send(socket, &number.to_ne_bytes(), SendFlags::NOSIGNAL)?;
    Ok(())
}

/// A request as the program receives it.
struct Request {
    folder: Option<OsString>,
    env: Vec<Variable>,
    started: UnixStream,
    output: [OwnedFd; 2],
}

impl Request {
    /// The next request; `None` if there will be none.
    fn receive(socket: &OwnedFd) -> io::Result<Option<Self>> {
        let mut bytes = vec![0; LONGEST];
        let Some((received, [started, stdout, stderr])) = files::receive(socket, &mut bytes)? else {
            return Ok(None);
        };
        let (folder, env) = unpacked(&bytes[..received]);
        Ok(Some(Request { folder, env, started: started.into(), output: [stdout, stderr] }))
    }

    fn settle(&self, agent: Option<Pid>, forking: &Forking) -> io::Result<()> {
        if !die_with_parent(Pid::as_raw(agent))? {
            return Err(io::Error::other("the process that started this one has ended"));
        }
        setsid()?;
        rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
        rustix::stdio::dup2_stdout(&self.output[0])?;
        rustix::stdio::dup2_stderr(&self.output[1])?;
        (forking.set_variables)(&self.env);
        orphans::set_limit();
        self.folder.as_ref().map_or(Ok(()), std::env::set_current_dir)?;
        Ok(await_watch(self.started.as_fd())?)
    }
}

/// The folder, then each variable: its name and, after `=`, its value. Each ends with a zero byte, which none of them can contain.
fn packed(folder: Option<&Path>, env: &[Variable]) -> Vec<u8> {
    let mut bytes = folder.map_or_else(Vec::new, |folder| folder.as_os_str().as_bytes().to_vec());
    for (name, value) in env {
        bytes.push(0);
        bytes.extend(name.as_bytes());
        if let Some(value) = value {
            bytes.push(b'=');
            bytes.extend(value.as_bytes());
        }
    }
    bytes.push(0);
    bytes
}

fn unpacked(bytes: &[u8]) -> (Option<OsString>, Vec<Variable>) {
    let text = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
    let mut parts = bytes.strip_suffix(&[0]).unwrap_or(bytes).split(|byte| *byte == 0);
    let folder = parts.next().filter(|folder| !folder.is_empty()).map(text);
    let variable = |part: &[u8]| match part.iter().position(|byte| *byte == b'=') {
        Some(end) => (text(&part[..end]), Some(text(&part[end + 1..]))),
        None => (text(part), None),
    };
    (folder, parts.map(variable).collect())
}

fn descriptor(sink: Sink, own: impl AsFd) -> io::Result<OwnedFd> {
    match sink {
        Sink::Inherit => own.as_fd().try_clone_to_owned(),
        Sink::Null => Ok(File::options().write(true).open("/dev/null")?.into()),
        Sink::Fd(fd) => Ok(fd),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_comes_back_from_its_bytes() {
        let env = [("A".into(), Some("b=c".into())), ("B".into(), Some("".into())), ("C".into(), None)];
        for folder in [None, Some(Path::new("/a b"))] {
            let (unpacked_folder, unpacked_env) = unpacked(&packed(folder, &env));
            assert_eq!(unpacked_folder.as_deref().map(Path::new), folder);
            assert_eq!(unpacked_env, env);
        }
        assert_eq!(unpacked(&packed(None, &[])), (None, vec![]));
    }

    #[test]
    fn a_program_that_ends_without_serving_is_no_template() {
        assert!(Template::start("true".as_ref(), &[], &[]).is_err());
    }

    #[test]
    fn who_was_not_started_as_a_template_goes_on() {
        let never = Forking { fork: || panic!("forks"), set_variables: |_| panic!("sets"), exit: |_| panic!("ends") };
        assert!(serve(&never).unwrap());
    }
}
