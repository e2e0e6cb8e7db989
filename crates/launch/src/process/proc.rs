//! What `/proc` tells of processes (proc(5)): parents, sessions, start times, environments.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStringExt;

use rustix::io::Errno;
use rustix::process::{WaitId, WaitIdOptions, waitid};

/// An environment larger than this is read no further: no marker is looked for behind it. In bytes.
const LARGEST_ENVIRONMENT: u64 = 8 << 20;

/// One line of `/proc/PID/stat`, as far as it is needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stat {
    pub(super) pid: i32,
    pub(super) name: String,
    pub(super) state: char,
    pub(super) parent: i32,
    pub(super) group: i32,
    pub(super) session: i32,
    /// When it was started, in clock ticks since the machine was. With the pid, it tells a process from all others.
    pub(super) start: u64,
}

impl Stat {
    /// Reads it for a process; `None` when there is none by this id.
    pub(super) fn of(pid: i32) -> Option<Self> {
        Self::parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(line: &[u8]) -> Option<Self> {
        // The name stands in parentheses and may itself hold any byte, parentheses and spaces too.
        let open = line.iter().position(|byte| *byte == b'(')?;
        let close = line.iter().rposition(|byte| *byte == b')')?;
        let pid = std::str::from_utf8(&line[..open]).ok()?.trim().parse().ok()?;
        let name = String::from_utf8_lossy(line.get(open + 1..close)?).into_owned();
        let mut rest = std::str::from_utf8(&line[close + 1..]).ok()?.split_ascii_whitespace();
        let state = rest.next()?.chars().next()?;
        let mut number = || rest.next()?.parse::<i32>().ok();
        let (parent, group, session) = (number()?, number()?, number()?);
        // Of the fields that follow, `starttime` is the 16th (the line's 22nd).
        let start = rest.nth(15)?.parse().ok()?;
        Some(Stat { pid, name, state, parent, group, session, start })
    }

    /// Whether it has ended and only waits to be reaped.
    pub(super) fn is_dead(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }
}

/// Every process of this machine (of this pid namespace) that can be seen.
pub(super) fn everyone() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Returns true if this process has children, dead or alive. One system call: [`children`] makes many.
pub(super) fn has_children() -> bool {
    // Also those that end without SIGCHLD (waitid(2)); rustix has no name for it.
    let all = WaitIdOptions::from_bits_retain(0x4000_0000);
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT | all;
    !matches!(waitid(WaitId::All, look), Err(Errno::CHILD))
}

/// The children of this process.
pub(super) fn children() -> Vec<i32> {
    listed_children().unwrap_or_else(|| {
        let own = rustix::process::getpid().as_raw_pid();
        everyone().filter(|pid| Stat::of(*pid).is_some_and(|stat| stat.parent == own)).collect()
    })
}

/// As the kernel lists them for each thread, if it was built with `CONFIG_PROC_CHILDREN`.
fn listed_children() -> Option<Vec<i32>> {
    let mut children = Vec::new();
    for thread in fs::read_dir("/proc/self/task").ok()?.flatten() {
        match fs::read_to_string(thread.path().join("children")) {
            Ok(pids) => children.extend(pids.split_ascii_whitespace().filter_map(|pid| pid.parse::<i32>().ok())),
            // The thread has ended meanwhile.
            Err(_) if !thread.path().exists() => {}
            Err(_) => return None,
        }
    }
    Some(children)
}

/// The value of a variable in the environment that a process was started with; `None` also when it is not ours to read.
pub(super) fn variable(pid: i32, name: &str) -> Option<OsString> {
    let mut environment = Vec::new();
    let file = File::open(format!("/proc/{pid}/environ")).ok()?;
    file.take(LARGEST_ENVIRONMENT).read_to_end(&mut environment).ok()?;
    find_variable(&environment, name).map(|value| OsString::from_vec(value.to_vec()))
}

/// The soft limit on file locks of a process, if it has one.
pub(super) fn lock_limit(pid: i32) -> Option<u64> {
    find_lock_limit(&fs::read_to_string(format!("/proc/{pid}/limits")).ok()?)
}

fn find_lock_limit(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max file locks"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

fn find_variable<'a>(environment: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let entries = environment.split(|byte| *byte == 0);
    entries.filter_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "4242 (a) b (c) S 17 4240 4000 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 987654 2600 1\n";

    #[test]
    fn reads_a_line_whose_name_holds_spaces_and_parentheses() {
        let stat = Stat::parse(LINE.as_bytes()).unwrap();
        let expected = Stat {
            pid: 4242,
            name: "a) b (c".into(),
            state: 'S',
            parent: 17,
            group: 4240,
            session: 4000,
            start: 987654,
        };
        assert_eq!(stat, expected);
        assert!(!stat.is_dead() && Stat { state: 'Z', ..stat }.is_dead());
    }

    #[test]
    fn takes_no_line_that_is_cut_before_the_start_time() {
        let whole = LINE.find("987654").unwrap();
        assert!((0..whole).all(|end| Stat::parse(&LINE.as_bytes()[..end]).is_none()));
    }

    #[test]
    fn finds_this_process_itself() {
        let own = std::process::id() as i32;
        let stat = Stat::of(own).unwrap();
        assert_eq!((stat.pid, stat.parent), (own, std::os::unix::process::parent_id() as i32));
        assert!(everyone().any(|pid| pid == own));
    }

    #[test]
    fn finds_the_limit_on_locks() {
        let limits = |limit: &str| {
            format!("Max address space   unlimited  unlimited  bytes\nMax file locks     {limit}  unlimited  locks\n")
        };
        assert_eq!(find_lock_limit(&limits("1234567890123")), Some(1_234_567_890_123));
        assert_eq!(find_lock_limit(&limits("unlimited")), None);
        assert_eq!(find_lock_limit(""), None);
    }

    #[test]
    fn finds_a_variable_by_its_whole_name() {
        let environment = b"XMARK=no\0MARKER=no\0MARK=a=b\0MARK=second\0";
        assert_eq!(find_variable(environment, "MARK"), Some(&b"a=b"[..]));
        assert_eq!(find_variable(environment, "MAR"), None);
    }
}
