//! Descriptors, files and sockets: the limit on open files, descriptors that cross a socket, the end of a log, listening sockets.
//!
//! A job of a thousand workers needs thousands of files in its agent, while many systems allow a process 1,024 unless it asks for more
//! ([`raise_open_files`]). The soft limit is low for programs that use `select`(2), so workers get the limit with which the agent was
//! started.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, IoSlice, IoSliceMut, Read, Seek, SeekFrom};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The hard limit is lower than the number of open files that are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{workers} workers on this node need {needed} open files in their agent, but the hard limit is {hard}: raise the hard \
     limit (`ulimit -Hn`, LimitNOFILE= of a systemd unit, nofile in /etc/security/limits.conf) or lower --nproc-per-node"
)]
pub struct TooFewFiles {
    pub workers: usize,
    /// The number of open files that the agent needs for these workers.
    pub needed: u64,
    pub hard: u64,
}

/// Raises this process's soft limit on open files as far as the hard limit allows. `needed` is the number of files that
/// this node's `workers` need. Returns the previous soft limit, for
/// [`Workers::limit_open_files`](super::Workers::limit_open_files); `None` if it was unlimited.
///
/// # Errors
/// The hard limit is lower than what is needed.
pub fn raise_open_files(workers: usize, needed: u64) -> Result<Option<u64>, TooFewFiles> {
    let limit = getrlimit(Resource::Nofile);
    if let Some(hard) = limit.maximum.filter(|hard| *hard < needed) {
        return Err(TooFewFiles { workers, needed, hard });
    }
    // A limit that cannot be raised stays as it was; opening a file reports it when it is reached.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    Ok(limit.current)
}

/// Space for the descriptors of one message, three at most.
const SPACE: usize = rustix::cmsg_space!(ScmRights(3));

/// Sends bytes, at least one, with these descriptors.
pub(super) fn send(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(descriptors));
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives bytes and their descriptors. Returns the number of bytes and the descriptors; `None` if the other end is closed.
pub(super) fn receive<const N: usize>(
    socket: impl AsFd,
    bytes: &mut [u8],
) -> io::Result<Option<(usize, [OwnedFd; N])>> {
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received =
        retry_on_intr(|| recvmsg(&socket, &mut [IoSliceMut::new(bytes)], &mut control, RecvFlags::CMSG_CLOEXEC))?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let all = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let all: Vec<OwnedFd> = all.flatten().collect();
    let found = <[OwnedFd; N]>::try_from(all);
    found
        .map(|descriptors| Some((received.bytes, descriptors)))
        .map_err(|all| io::Error::other(format!("{} of {N} descriptors came", all.len())))
}

/// The last bytes of a file, at most `limit` of them.
///
/// # Errors
/// When the file cannot be read, or is a folder or a pipe.
pub fn end_of_file(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(limit)))?;
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A TCP port that nobody listens on now on 127.0.0.1, for programs that must know the port before one of them listens. It is below those
/// that Linux gives to whoever asks for any port, and each call of this process begins its search elsewhere, so that others hardly take
/// it meanwhile.
pub fn free_port() -> io::Result<u16> {
    const PORTS: std::ops::Range<u16> = 20_000..32_000;
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let calls = CALLS.fetch_add(1, Ordering::Relaxed);
    let begin = std::process::id().wrapping_add(calls.wrapping_mul(4_001)) % PORTS.len() as u32;
    let first = PORTS.start + begin as u16;
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    (first..PORTS.end).chain(PORTS.start..first).find(is_free).ok_or_else(|| io::ErrorKind::AddrInUse.into())
}

/// The state of a listening socket in `/proc/net/tcp` (the kernel's include/net/tcp_states.h).
const LISTEN: &str = "0A";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Listener {
    /// The socket's number in the kernel, unique while the socket exists.
    pub inode: u64,
    pub port: u16,
    /// The user who created it.
    pub uid: u32,
}

impl Listener {
    /// Returns all listeners in this process's network namespace.
    #[must_use]
    pub fn all() -> BTreeSet<Self> {
        Self::seen_in(Path::new("/proc")).into_iter().collect()
    }

    /// Returns all listeners in a network namespace, in the kernel's order. `folder` is `/proc`, or `/proc/PID` for the
    /// namespace of that process.
    #[must_use]
    pub fn seen_in(folder: &Path) -> Vec<Self> {
        let tables = ["net/tcp", "net/tcp6"].map(|table| fs::read_to_string(folder.join(table)).unwrap_or_default());
        tables.iter().flat_map(|table| table.lines().filter_map(Self::parse)).collect()
    }

    /// Returns the listeners of a process.
    #[must_use]
    pub fn of(pid: u32) -> BTreeSet<Self> {
        let sockets = open_sockets(Path::new("/proc"), pid);
        if sockets.is_empty() {
            return BTreeSet::new();
        }
        Self::all().into_iter().filter(|listener| sockets.contains(&listener.inode)).collect()
    }

    /// A line of the table (proc_pid_net(5)): `sl local_address rem_address st … uid … inode …`; the address is `HEX:PORT`.
    fn parse(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let (address, state, uid, inode) = (fields.get(1)?, fields.get(3)?, fields.get(7)?, fields.get(9)?);
        if *state != LISTEN {
            return None;
        }
        let port = u16::from_str_radix(address.rsplit_once(':')?.1, 16).ok()?;
        Some(Listener { inode: inode.parse().ok()?, port, uid: uid.parse().ok()? })
    }
}

/// The numbers of the sockets that a process has open; none if this user may not see them.
#[must_use]
pub fn open_sockets(proc: &Path, pid: u32) -> BTreeSet<u64> {
    let files = fs::read_dir(proc.join(pid.to_string()).join("fd")).into_iter().flatten().flatten();
    files.filter_map(|file| number(fs::read_link(file.path()).ok()?.to_str()?)).collect()
}

/// Parses `socket:[4711]`.
fn number(link: &str) -> Option<u64> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn names_the_workers_the_need_and_the_limit() {
        let Some(hard) = getrlimit(Resource::Nofile).maximum else { return };
        let refused = raise_open_files(9, hard + 1).unwrap_err();
        assert_eq!(refused, TooFewFiles { workers: 9, needed: hard + 1, hard });
        let message = refused.to_string();
        assert!(message.starts_with("9 workers on this node need ") && message.contains("`ulimit -Hn`"), "{message}");
    }

    #[test]
    fn descriptors_cross_the_socket_with_their_bytes() {
        let file = tempfile::tempfile().unwrap();
        (&file).write_all(b"across").unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        send(&ours, b"two", &[file.as_fd(), ours.as_fd()]).unwrap();
        let mut bytes = [0; 8];
        let (count, [came, _]) = receive(&theirs, &mut bytes).unwrap().unwrap();
        assert_eq!((&bytes[..count], File::from(came).metadata().unwrap().len()), (&b"two"[..], 6));
        send(&ours, b"one", &[file.as_fd()]).unwrap();
        let few = receive::<2>(&theirs, &mut bytes).unwrap_err();
        assert_eq!(few.to_string(), "1 of 2 descriptors came");
    }

    #[test]
    fn a_closed_socket_has_no_message() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(ours);
        assert!(receive::<1>(&theirs, &mut [0]).unwrap().is_none());
    }

    #[test]
    fn reads_only_the_end_of_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        assert!(end_of_file(&path, 8).is_err() && end_of_file(folder.path(), 8).is_err());
        std::fs::write(&path, "one\nlast").unwrap();
        assert_eq!(end_of_file(&path, 5).unwrap(), b"\nlast");
        assert_eq!(end_of_file(&path, 9).unwrap(), b"one\nlast");
    }

    #[test]
    fn reads_a_listening_socket_and_ignores_other_lines() {
        let line = |state| {
            format!("   0: 0100007F:1F90 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 7 0 4711 1 0")
        };
        assert_eq!(Listener::parse(&line("0A")), Some(Listener { inode: 4711, port: 8080, uid: 7 }));
        assert_eq!(Listener::parse(&line("01")), None);
        for end in 0..line("0A").len() - 12 {
            assert_eq!(Listener::parse(&line("0A")[..end]), None, "{end}");
        }
        let title = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid";
        assert_eq!(Listener::parse(title), None);
        assert_eq!((number("socket:[12]"), number("pipe:[12]"), number("socket:[")), (Some(12), None, None));
    }

    #[test]
    fn finds_a_socket_of_this_process_until_it_is_closed() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let found = Listener::of(std::process::id()).into_iter().find(|listener| listener.port == port).unwrap();
        assert!(Listener::all().contains(&found));
        drop(socket);
        // A child of another test has a copy until it executes its program.
        crate::watchdog::until(|| !Listener::all().contains(&found)).unwrap();
    }
}
