//! What a node tries with the others: TCP connections, and the shared folder.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener as StdListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::facts::{Lock, Outcome, Ports, View};

/// The first word of an answer.
const DOCTOR: &str = "lockstep-doctor";
/// An answer is this word, a name and a number.
const LONGEST: u64 = 1024;

/// The open ports of this node. They answer until it is dropped.
pub(super) struct Listeners {
    pub(super) ports: Ports,
    _tasks: JoinSet<()>,
}

impl Listeners {
    /// Opens a free port, and these. A port that another program holds is left alone.
    pub(super) fn open(name: &str, known: &[u16]) -> std::io::Result<Self> {
        let mut tasks = JoinSet::new();
        let mut listen = |port| {
            let listener = bind(port)?;
            let port = listener.local_addr()?.port();
            tasks.spawn(answer_all(listener, name.to_owned()));
            std::io::Result::Ok(port)
        };
        let mut ports = Ports { free: listen(0)?, ..Ports::default() };
        for port in known {
            match listen(*port) {
                Ok(port) => ports.known.push(port),
                Err(error) if error.kind() == ErrorKind::AddrInUse => ports.taken.push(*port),
                Err(_) => {} // a port below 1024, which only root may open
            }
        }
        Ok(Listeners { ports, _tasks: tasks })
    }
}

/// On all addresses of both kinds, or of IPv4 where the kernel has no other.
fn bind(port: u16) -> std::io::Result<TcpListener> {
    let all = [IpAddr::from(Ipv6Addr::UNSPECIFIED), IpAddr::from(Ipv4Addr::UNSPECIFIED)];
    let bound = match StdListener::bind(SocketAddr::new(all[0], port)) {
        Err(error) if error.kind() != ErrorKind::AddrInUse => StdListener::bind(SocketAddr::new(all[1], port)),
        bound => bound,
    }?;
    bound.set_nonblocking(true)?;
    TcpListener::from_std(bound)
}

async fn answer_all(listener: TcpListener, name: String) {
    let mut answers = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        answers.spawn(answer(stream, name.clone()));
        while answers.try_join_next().is_some() {}
    }
}

/// Waits for the question before it answers, so that the asker times the answer alone.
async fn answer(mut stream: TcpStream, name: String) {
    let mut question = [0];
    if stream.read_exact(&mut question).await.is_ok() {
        let text = format!("{DOCTOR} {} {name}\n", micros());
        let _ = stream.write_all(text.as_bytes()).await; // who asked is gone
    }
}

/// Microseconds since 1970.
fn micros() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

/// Connects to a port, and asks who it is.
pub(super) async fn ask(address: SocketAddr, patience: Duration) -> Outcome {
    let stream = match timeout(patience, TcpStream::connect(address)).await {
        Err(_) => return Outcome::TimedOut(patience.as_secs()),
        Ok(Err(error)) => {
            return match error.kind() {
                ErrorKind::ConnectionRefused => Outcome::Refused,
                ErrorKind::TimedOut => Outcome::TimedOut(patience.as_secs()),
                _ => Outcome::Failed(error.to_string()),
            };
        }
        Ok(Ok(stream)) => stream,
    };
    timeout(patience, question(stream)).await.unwrap_or(Outcome::TimedOut(patience.as_secs()))
}

async fn question(mut stream: TcpStream) -> Outcome {
    let before = micros();
    let mut answer = String::new();
    if stream.write_all(b"?").await.is_err() || stream.take(LONGEST).read_to_string(&mut answer).await.is_err() {
        return Outcome::OtherProgram;
    }
    understand(&answer, before, micros()).unwrap_or(Outcome::OtherProgram)
}

/// The other clock was read at some time between these two.
fn understand(answer: &str, before: i64, after: i64) -> Option<Outcome> {
    let (time, by) = answer.strip_prefix(DOCTOR)?.trim().split_once(' ')?;
    let uncertain = (after - before).max(0) / 2;
    let ahead = time.parse::<i64>().ok()?.checked_sub(before.checked_add(uncertain)?)?;
    Some(Outcome::Answered { by: by.to_owned(), ahead, uncertain })
}

// ---- the shared folder

/// The file that the head node locks.
const LOCK: &str = "lock";
/// The file that it replaces, and the name under which it writes it first.
const CURRENT: &str = "current";
const NEXT: &str = "next";
/// How often the others read the file.
const READS: usize = 200;
/// The head node pauses between two replacements: a file server has other clients.
const REST: Duration = Duration::from_millis(1);
/// A whole file has this many equal bytes.
const SIZE: usize = 4096;

/// The head node's part. What it made is removed when it is dropped.
pub(super) struct Host {
    folder: PathBuf,
    _lock: File,
    stop: Arc<AtomicBool>,
    replacer: Option<JoinHandle<()>>,
}

impl Host {
    /// Makes a folder of this name.
    pub(super) fn start(folder: &Path, name: &str) -> io::Result<Self> {
        let folder = folder.join(name);
        fs::create_dir(&folder)?;
        let made = (|| {
            let lock = File::create(folder.join(LOCK))?;
            flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
            replace(&folder, 0)?;
            Ok(lock)
        })();
        let lock = match made {
            Ok(lock) => lock,
            Err(error) => {
                let _ = fs::remove_dir_all(&folder);
                return Err(error);
            }
        };
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, place) = (Arc::clone(&stop), folder.clone());
        let replacer = thread::Builder::new().spawn(move || {
            let mut round: u8 = 1;
            while !stopped.load(Ordering::Relaxed) && replace(&place, round).is_ok() {
                round = round.wrapping_add(1);
                thread::park_timeout(REST);
            }
        });
        let replacer = replacer.inspect_err(|_| drop(fs::remove_dir_all(&folder)))?;
        Ok(Host { folder, _lock: lock, stop, replacer: Some(replacer) })
    }

    /// Looks for the files of the others.
    pub(super) fn completes(&self, views: &mut [View]) {
        for view in views {
            view.seen_by_head = self.folder.join(file_of(&view.node)).exists();
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(replacer) = self.replacer.take() {
            replacer.thread().unpark();
            let _ = replacer.join(); // it does not panic
        }
        let _ = fs::remove_dir_all(&self.folder); // others may still look
    }
}

/// Writes a file, and gives it the name of the one that is there.
fn replace(folder: &Path, round: u8) -> io::Result<()> {
    let next = folder.join(NEXT);
    File::create(&next)?.write_all(&[round; SIZE])?;
    fs::rename(next, folder.join(CURRENT))
}

/// Another node's part.
pub(super) fn look(folder: &Path, name: &str, node: &str) -> View {
    let folder = folder.join(name);
    let sees_head = folder.join(LOCK).exists();
    let wrote = sees_head && fs::write(folder.join(file_of(node)), node).is_ok();
    let lock = if sees_head { try_lock(&folder.join(LOCK)) } else { Lock::Untried };
    let torn = if sees_head { (0..READS).find_map(|_| read(&folder.join(CURRENT))) } else { None };
    View { node: node.to_owned(), sees_head, wrote, seen_by_head: false, lock, torn }
}

fn file_of(node: &str) -> String {
    format!("of {}", node.replace('/', "_"))
}

fn try_lock(path: &Path) -> Lock {
    // On NFS an exclusive lock needs a file that is open for writing.
    let Ok(file) = File::options().write(true).open(path) else { return Lock::Untried };
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Lock::Honoured,
        Err(error) => Lock::Failed(error.to_string()),
        Ok(()) => Lock::Ignored,
    }
}

/// What was wrong with the file at this moment.
fn read(path: &Path) -> Option<String> {
    match fs::read(path) {
        // NFS gives this error for a file that was replaced while it was open; the next attempt finds the new one.
        Err(error) if error.kind() == ErrorKind::StaleNetworkFileHandle => None,
        Err(error) => Some(error.to_string()),
        Ok(bytes) if bytes.len() == SIZE && bytes.iter().all(|byte| *byte == bytes[0]) => None,
        Ok(bytes) => Some(format!("{} of {SIZE} bytes", bytes.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn local(port: u16) -> SocketAddr {
        SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)
    }

    #[tokio::test]
    async fn doctors_say_who_they_are_and_strangers_and_closed_ports_are_distinguished() {
        let held = StdListener::bind(local(0)).unwrap();
        let port = held.local_addr().unwrap().port();
        let open = Listeners::open("n 1", &[port]).unwrap();
        assert_eq!((open.ports.known.len(), &open.ports.taken), (0, &vec![port]));
        match ask(local(open.ports.free), PATIENCE).await {
            Outcome::Answered { by, ahead, uncertain } => {
                assert!(by == "n 1" && ahead.abs() <= uncertain + 1, "{by} {ahead} {uncertain}");
            }
            other => panic!("{other:?}"),
        }
        let free = open.ports.free;
        let stranger = std::thread::spawn(move || drop(held.accept()));
        assert_eq!(ask(local(port), PATIENCE).await, Outcome::OtherProgram);
        stranger.join().unwrap();
        drop(open);
        // The tasks end when the runtime next runs them.
        while ask(local(free), PATIENCE).await != Outcome::Refused {
            tokio::task::yield_now().await;
        }
    }

    #[test]
    fn measures_another_clock_with_its_uncertainty() {
        let seen = understand("lockstep-doctor 5000 n1\n", 1000, 3000);
        assert_eq!(seen, Some(Outcome::Answered { by: "n1".into(), ahead: 3000, uncertain: 1000 }));
        for hostile in ["", "lockstep-doctor", "lockstep-doctor x n1", "HTTP/1.1 400 Bad Request", "lockstep-doctor 1"]
        {
            assert_eq!(understand(hostile, 0, 0), None, "{hostile}");
        }
        assert_eq!(understand(&format!("lockstep-doctor {} n1", i64::MIN), 9, 9), None);
    }

    #[test]
    fn a_shared_folder_shows_files_locks_and_whole_files_and_is_left_clean() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::start(dir.path(), "x").unwrap();
        let mut views = [look(dir.path(), "x", "n2")];
        host.completes(&mut views);
        let [view] = &views;
        assert_eq!((view.sees_head, view.seen_by_head, &view.lock, &view.torn), (true, true, &Lock::Honoured, &None));
        drop(host);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    }

    #[test]
    fn another_folder_of_the_same_name_is_not_shared() {
        let [one, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let host = Host::start(one.path(), "x").unwrap();
        let mut views = [look(other.path(), "x", "n2")];
        host.completes(&mut views);
        assert_eq!((views[0].sees_head, views[0].seen_by_head, &views[0].lock), (false, false, &Lock::Untried));
        assert_eq!(fs::read_dir(&other).unwrap().count(), 0);
    }

    #[test]
    fn finds_locks_that_do_not_hold_and_files_that_are_not_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        assert_eq!(try_lock(&path), Lock::Untried);
        assert!(read(&path).is_some());
        fs::write(&path, [1; 10]).unwrap();
        assert_eq!((try_lock(&path), read(&path)), (Lock::Ignored, Some("10 of 4096 bytes".into())));
        fs::write(&path, [[1; SIZE / 2], [2; SIZE / 2]].concat()).unwrap();
        assert!(read(&path).is_some());
    }
}
