//! The warden, as the agent sees it: a small process that outlives the agent by a moment if the agent is killed.
//!
//! The kernel kills workers with the agent, but not what workers have started. So the agent starts this process first and
//! holds a socket to it; when the socket closes without a goodbye, the warden ends the rest ([`super::guard`]). If the
//! warden dies, the agent starts another and tells it everything anew.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Pid;

use super::mark::AgentId;
use super::proc::Stat;
use super::watch;

/// The name of the subcommand.
pub const WARDEN: &str = "warden";

/// A warden that dies within this time of its start failed at it.
const FAILED: Duration = Duration::from_secs(1);
/// So many that fail in a row are enough.
const TRIES: u32 = 5;
/// How long a warden that was sent home may take.
const GOODBYE: Duration = Duration::from_secs(2);

/// What the agent tells its warden. Each is a line that a zero byte ends: no path holds one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// A worker leads the session of this id; it was started at this time (see [`Stat::start`]).
    Began(i32, u64),
    /// All of that session is gone.
    Gone(i32),
    /// Remove this folder if the agent is killed.
    Entrust(PathBuf),
    /// Do not.
    Release(PathBuf),
    /// The agent ends as it should.
    Goodbye,
}

/// The agent's end.
pub(super) struct Warden {
    id: AgentId,
    process: Child,
    pidfd: OwnedFd,
    socket: UnixStream,
    sessions: BTreeMap<i32, u64>,
    folders: BTreeSet<PathBuf>,
    started: Instant,
    failures: u32,
}

impl Warden {
    pub(super) fn start() -> io::Result<Self> {
        let id = AgentId::random()?;
        let (process, pidfd, socket) = spawn(id, &[])?;
        let (sessions, folders) = (BTreeMap::new(), BTreeSet::new());
        Ok(Warden { id, process, pidfd, socket, sessions, folders, started: Instant::now(), failures: 0 })
    }

    pub(super) fn id(&self) -> AgentId {
        self.id
    }

    pub(super) fn pid(&self) -> i32 {
        self.process.id() as i32
    }

    pub(super) fn pidfd(&self) -> &OwnedFd {
        &self.pidfd
    }

    pub(super) fn entrust(&mut self, folder: &Path) {
        // The warden stands in another folder.
        let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
        self.say(&Word::Entrust(folder.clone()));
        self.folders.insert(folder);
    }

    pub(super) fn release(&mut self, folder: &Path) {
        let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
        self.say(&Word::Release(folder.clone()));
        self.folders.remove(&folder);
    }

    pub(super) fn worker_began(&mut self, pid: Pid) {
        let pid = pid.as_raw_pid();
        // A worker that is unreaped is seen.
        let Some(stat) = Stat::of(pid) else { return };
        self.sessions.insert(pid, stat.start);
        self.say(&Word::Began(pid, stat.start));
    }

    pub(super) fn worker_gone(&mut self, pid: i32) {
        self.sessions.remove(&pid);
        self.say(&Word::Gone(pid));
    }

    /// Starts another in place of one that has died.
    pub(super) fn replace(&mut self) -> io::Result<()> {
        let status = self.process.wait()?;
        let now = Instant::now();
        self.failures = failures(self.failures, now - self.started);
        self.started = now;
        if self.failures >= TRIES {
            let told =
                format!("the agent's warden (`{WARDEN}`) died {TRIES} times at its start, the last time with {status}");
            return Err(io::Error::other(told));
        }
        let sessions = self.sessions.iter().map(|(pid, start)| Word::Began(*pid, *start));
        let words: Vec<Word> = sessions.chain(self.folders.iter().cloned().map(Word::Entrust)).collect();
        (self.process, self.pidfd, self.socket) = spawn(self.id, &words)?;
        Ok(())
    }

    /// Sends it home and waits until it is gone.
    pub(super) fn dismiss(&mut self) {
        self.say(&Word::Goodbye);
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        let until = Instant::now() + GOODBYE;
        watch::await_end(&self.pidfd, until);
        if Instant::now() >= until {
            let _ = self.process.kill();
        }
        let _ = self.process.wait();
    }

    fn say(&mut self, word: &Word) {
        let bytes = word.to_bytes();
        // A warden that does not listen (a full socket: it is stopped) is replaced by one that does.
        if !matches!((&self.socket).write(&bytes), Ok(written) if written == bytes.len()) {
            let _ = self.process.kill();
        }
    }
}

impl Word {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = match self {
            Word::Began(pid, start) => format!("began {pid} {start}").into_bytes(),
            Word::Gone(pid) => format!("gone {pid}").into_bytes(),
            Word::Entrust(folder) => [b"entrust ", folder.as_os_str().as_bytes()].concat(),
            Word::Release(folder) => [b"release ", folder.as_os_str().as_bytes()].concat(),
            Word::Goodbye => b"goodbye".to_vec(),
        };
        bytes.push(0);
        bytes
    }

    /// Reads one, without the byte that ends it.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let path = |bytes: &[u8]| PathBuf::from(OsString::from_vec(bytes.to_vec()));
        if let Some(folder) = bytes.strip_prefix(b"entrust ") {
            return Some(Word::Entrust(path(folder)));
        }
        if let Some(folder) = bytes.strip_prefix(b"release ") {
            return Some(Word::Release(path(folder)));
        }
        let words: Vec<&str> = std::str::from_utf8(bytes).ok()?.split(' ').collect();
        match words[..] {
            ["began", pid, start] => Some(Word::Began(pid.parse().ok()?, start.parse().ok()?)),
            ["gone", pid] => Some(Word::Gone(pid.parse().ok()?)),
            ["goodbye"] => Some(Word::Goodbye),
            _ => None,
        }
    }
}

/// How many have failed in a row, after one that lived so long.
fn failures(before: u32, lived: Duration) -> u32 {
    if lived < FAILED { before + 1 } else { 0 }
}

/// Starts a warden that hears these words first: they wait for it in the socket, so that it never knows less than it should.
fn spawn(id: AgentId, words: &[Word]) -> io::Result<(Child, OwnedFd, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let bytes: Vec<u8> = words.iter().flat_map(Word::to_bytes).collect();
    (&ours).write_all(&bytes)?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("job-warden").arg(WARDEN).arg(id.to_string()).stdin(OwnedFd::from(theirs));
    let mut process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    match watch::open(Pid::from_child(&process)) {
        Ok(pidfd) => Ok((process, pidfd, ours)),
        Err(error) => {
            process.kill()?;
            process.wait()?;
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_back_as_they_were_said() {
        let odd = PathBuf::from(OsString::from_vec(b"/tmp/a b\n\xff gone 3".to_vec()));
        let words =
            [Word::Began(42, 987_654), Word::Gone(42), Word::Entrust(odd.clone()), Word::Release(odd), Word::Goodbye];
        for word in words {
            let bytes = word.to_bytes();
            assert_eq!(bytes.iter().filter(|byte| **byte == 0).count(), 1);
            assert_eq!(Word::parse(bytes.strip_suffix(b"\0").unwrap()), Some(word));
        }
        for wrong in ["", "began", "began 1", "began x 2", "began 1 2 3", "gone", "goodbye 1", "\u{ff}"] {
            assert_eq!(Word::parse(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn only_wardens_that_die_young_count_as_failed() {
        assert_eq!(failures(0, Duration::ZERO), 1);
        assert_eq!(failures(3, Duration::from_millis(999)), 4);
        assert_eq!(failures(4, FAILED), 0);
    }
}
