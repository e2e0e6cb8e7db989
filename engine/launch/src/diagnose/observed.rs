//! The facts that were observed before a rendezvous failed, and the process that listens on a port of this host. For a process of
//! another user, only the user is visible.

use std::fmt;
use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use lockstep_process::{Listener, open_sockets};

use crate::rendezvous::Absence;
use crate::scheduler::Allocation;

/// The facts that were observed before the rendezvous failed. Unknown facts are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// The configured address that all nodes must reach: `host:port`.
    pub endpoint: String,
    /// The addresses of the endpoint's host on this node.
    pub resolved: Vec<IpAddr>,
    /// True if this agent hosts the store.
    pub is_host: bool,
    /// The addresses of this node that others may reach, for advice.
    pub own_addresses: Vec<IpAddr>,
    /// Why this agent never reached the store.
    pub connect: Option<ConnectFailure>,
    /// The owner of the port on which this agent wanted to listen.
    pub port_owner: Option<PortOwner>,
    /// Which nodes came and which did not, if the store was reached.
    pub absence: Option<Absence>,
    /// The batch job that this agent belongs to.
    pub batch: Option<Allocation>,
    /// Peers that the store refused, with the reasons.
    pub refused: Vec<(String, String)>,
}

/// Why the store was not reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectFailure {
    /// The endpoint's host name has no address here.
    Unresolved {
        /// The resolver's error.
        error: String,
    },
    /// The host answers, but no process listens on the port.
    Refused {
        /// How long the connection was retried.
        tried: Duration,
    },
    /// The host does not answer, or there is no route to it.
    Unreachable {
        /// The operating system's error.
        error: String,
        /// How long the connection was retried.
        tried: Duration,
    },
    /// The connection was accepted, but no answer arrived.
    Mute {
        /// How long it waited for an answer.
        tried: Duration,
    },
    /// Something other than a store answers.
    OtherService {
        /// Its first bytes, as text.
        got: String,
    },
    /// The listener hangs up immediately.
    HungUp,
    /// Any other failure.
    Other {
        /// The operating system's error.
        error: String,
    },
}

impl From<&tcpstore::Error> for ConnectFailure {
    fn from(error: &tcpstore::Error) -> Self {
        use tcpstore::Kind;
        let tried = error.elapsed;
        match &error.kind {
            Kind::Unresolved(error) => ConnectFailure::Unresolved { error: error.to_string() },
            Kind::Refused => ConnectFailure::Refused { tried },
            Kind::Unreachable(error) => ConnectFailure::Unreachable { error: error.to_string(), tried },
            Kind::Mute => ConnectFailure::Mute { tried },
            Kind::NotAStore { got } => ConnectFailure::OtherService { got: got.clone() },
            Kind::HungUp => ConnectFailure::HungUp,
            other => ConnectFailure::Other { error: other.to_string() },
        }
    }
}

/// The owner of a listening port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortOwner {
    /// The port.
    pub port: u16,
    /// The user's name, or the number if it has no name here.
    pub user: String,
    /// The process, if this user may see it.
    pub process: Option<PortProcess>,
}

/// A process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortProcess {
    /// Its id.
    pub pid: u32,
    /// Its program's name.
    pub program: String,
    /// Its command line, at most 200 characters of it.
    pub command: String,
    /// The `--rdzv-id` of the job, if the process is a `lockstep run`.
    pub job: Option<String>,
}

/// The owner of the listening `port` of this host; `None` if no process listens, or the owner is unknown.
#[must_use]
pub fn port_owner(port: u16) -> Option<PortOwner> {
    owner_in(Path::new("/proc"), Path::new("/etc/passwd"), port)
}

fn owner_in(proc: &Path, passwd: &Path, port: u16) -> Option<PortOwner> {
    let Listener { uid, inode, .. } = Listener::seen_in(proc).into_iter().find(|listener| listener.port == port)?;
    let users = fs::read_to_string(passwd).unwrap_or_default();
    Some(PortOwner { port, user: user_name(&users, uid), process: holder(proc, inode) })
}

fn user_name(passwd: &str, uid: u32) -> String {
    let named = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    });
    named.unwrap_or_else(|| format!("uid {uid}"))
}

/// The process that has the socket open. If several have it (a child inherits it from its parent), the one that was
/// started first.
fn holder(proc: &Path, inode: u64) -> Option<PortProcess> {
    let pid = |entry: fs::DirEntry| entry.file_name().to_str()?.parse::<u32>().ok();
    let mut pids: Vec<u32> = fs::read_dir(proc).ok()?.flatten().filter_map(pid).collect();
    pids.sort_unstable();
    pids.into_iter().find(|pid| open_sockets(proc, *pid).contains(&inode)).map(|pid| process(proc, pid))
}

fn process(proc: &Path, pid: u32) -> PortProcess {
    let folder = proc.join(pid.to_string());
    let program = fs::read_to_string(folder.join("comm")).unwrap_or_default().trim_end().to_owned();
    let raw = fs::read(folder.join("cmdline")).unwrap_or_default();
    let words: Vec<String> = String::from_utf8_lossy(&raw).split_terminator('\0').map(str::to_owned).collect();
    let command = words.join(" ").chars().take(200).collect();
    PortProcess { pid, program, command, job: lockstep_job(&words) }
}

/// The `--rdzv-id` of a `lockstep run`; `none` if it has the default.
fn lockstep_job(words: &[String]) -> Option<String> {
    let program = Path::new(words.first()?).file_name()?.to_str()?;
    if program != "lockstep" || words.get(1)? != "run" {
        return None;
    }
    let mut rest = words[2..].iter();
    while let Some(word) = rest.next() {
        let (flag, value) = word.split_once('=').map_or((word.as_str(), None), |(flag, value)| (flag, Some(value)));
        if matches!(flag, "--rdzv-id" | "--rdzv_id") {
            return value.map(str::to_owned).or_else(|| rest.next().cloned());
        }
    }
    Some("none".to_owned())
}

impl fmt::Display for PortOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(PortProcess { pid, program, command, job }) = &self.process else {
            return write!(f, "port {} is taken by a process of user {}", self.port, self.user);
        };
        match job {
            Some(job) => write!(
                f,
                "port {} is taken by another lockstep run, of job id `{job}` (pid {pid}, user {}: {command})",
                self.port, self.user
            ),
            None => write!(f, "port {} is taken by {program} (pid {pid}, user {}: {command})", self.port, self.user),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn finds_this_process_as_the_owner_of_its_port() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else {
                println!("not verified here: ports of {address}, since it cannot be bound");
                continue;
            };
            let owner = port_owner(listener.local_addr().unwrap().port()).unwrap();
            let process = owner.process.clone().unwrap();
            assert_eq!(process.pid, std::process::id(), "{owner}");
            assert!(owner.to_string().contains(&format!("(pid {}, user ", std::process::id())), "{owner}");
        }
    }

    #[test]
    fn names_the_job_of_another_lockstep_run() {
        let job = |line: &str| lockstep_job(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(job("/bin/lockstep run --rdzv-id=a7 train"), Some("a7".into()));
        assert_eq!(job("lockstep run --nnodes 2 --rdzv_id b train"), Some("b".into()));
        assert_eq!(job("lockstep run train"), Some("none".into()));
        assert_eq!(job("lockstep verify"), None);
        assert_eq!(job("python train.py --rdzv-id=3"), None);
    }

    #[test]
    fn reports_the_user_of_a_hidden_process_and_nothing_without_a_listener() {
        let dir = tempfile::tempdir().unwrap();
        let line =
            "   0: 0100007F:733C 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 7 1 x 100";
        fs::create_dir(dir.path().join("net")).unwrap();
        let connected = line.replace("733C", "733D").replace(" 0A ", " 01 ");
        fs::write(dir.path().join("net/tcp"), format!("  sl  local_address\n\n:\n{connected}\n{line}\n")).unwrap();
        fs::write(dir.path().join("passwd"), "root:x:0:0::/root:/bin/sh\nbroken\nada:x:1000:1000::/:/bin/sh\n")
            .unwrap();
        let owner = owner_in(dir.path(), &dir.path().join("passwd"), 29500).unwrap();
        assert_eq!(owner.to_string(), "port 29500 is taken by a process of user ada");
        assert_eq!(owner_in(dir.path(), &dir.path().join("passwd"), 29501), None);
    }
}
