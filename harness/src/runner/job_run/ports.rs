//! The ports on which a process listens, with the kernel's socket numbers, which show later whether one is still open.

use std::collections::BTreeSet;
use std::fs;

/// A listening socket: its number in the kernel, which is unique while it exists, and its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Listener {
    inode: u64,
    pub(crate) port: u16,
}

/// The state "listen" in `/proc/net/tcp` (the kernel's tcp_states.h).
const LISTEN: &str = "0A";

/// The sockets on which this process listens now.
pub(super) fn of(pid: i32) -> BTreeSet<Listener> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return BTreeSet::new() };
    let links = entries.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    let inodes: BTreeSet<u64> = links.filter_map(|link| inode(link.to_str()?)).collect();
    if inodes.is_empty() {
        return BTreeSet::new();
    }
    listening().into_iter().filter(|listener| inodes.contains(&listener.inode)).collect()
}

/// All listening sockets in this process's network namespace.
pub(super) fn listening() -> BTreeSet<Listener> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|table| fs::read_to_string(table).unwrap_or_default());
    tables.iter().flat_map(|table| table.lines().filter_map(listener)).collect()
}

/// Parses `socket:[4711]`.
fn inode(link: &str) -> Option<u64> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// A line of the table (proc_pid_net(5)): `sl local_address rem_address st … inode …`; the address is `HEX:PORT`.
fn listener(line: &str) -> Option<Listener> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let (address, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
    if *state != LISTEN {
        return None;
    }
    let port = u16::from_str_radix(address.rsplit_once(':')?.1, 16).ok()?;
    Some(Listener { inode: inode.parse().ok()?, port })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_listening_socket_and_ignores_other_lines() {
        let line = |state| {
            format!("   0: 0100007F:1F90 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 0 0 4711 1 0")
        };
        assert_eq!(listener(&line("0A")), Some(Listener { inode: 4711, port: 8080 }));
        assert_eq!(listener(&line("01")), None);
        for end in 0..line("0A").len() - 12 {
            let _ = listener(&line("0A")[..end]);
        }
        assert_eq!(listener("  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid"), None);
        assert_eq!((inode("socket:[12]"), inode("pipe:[12]"), inode("socket:[")), (Some(12), None, None));
    }

    #[test]
    fn finds_a_socket_of_this_process_until_it_is_closed() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let this = std::process::id() as i32;
        let found = of(this).into_iter().find(|listener| listener.port == port).unwrap();
        assert!(listening().contains(&found));
        drop(socket);
        assert!(!listening().contains(&found));
    }
}
