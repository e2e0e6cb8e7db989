//! Listening TCP sockets, from `/proc/net/tcp` and `/proc/net/tcp6`, and which processes have a socket open.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The state of a listening socket in `/proc/net/tcp` (the kernel's include/net/tcp_states.h).
const LISTEN: &str = "0A";

/// A listening socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Listener {
    /// Its number in the kernel, which is unique while it exists.
    pub inode: u64,
    /// Its port.
    pub port: u16,
    /// The user who made it.
    pub uid: u32,
}

impl Listener {
    /// All in this process's network namespace.
    #[must_use]
    pub fn all() -> BTreeSet<Self> {
        Self::seen_in(Path::new("/proc")).into_iter().collect()
    }

    /// All in a network namespace, in the kernel's order. `folder` is `/proc`, or `/proc/PID` for the namespace of that process.
    #[must_use]
    pub fn seen_in(folder: &Path) -> Vec<Self> {
        let tables = ["net/tcp", "net/tcp6"].map(|table| fs::read_to_string(folder.join(table)).unwrap_or_default());
        tables.iter().flat_map(|table| table.lines().filter_map(Self::parse)).collect()
    }

    /// Those of a process.
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
    use super::*;

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
        lockstep_watchdog::until(|| !Listener::all().contains(&found)).unwrap();
    }
}
