//! Whether the system has room for the processes and threads that this process is about to start, and allows the calls that it needs.
//!
//! The user's limit (`ulimit -u`) and the control group's (`pids.max`) count both alike. At a limit, much of what starts threads panics or
//! waits for ever, in libraries, too. So a command first starts as many threads as it will need, and reports in one sentence what is
//! missing.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread::Builder;
use std::{fs, io};

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;
use rustix::process::{
    PidfdFlags, Resource, Signal, WaitId, WaitIdOptions, child_subreaper, getpid, getrlimit, pidfd_open,
    pidfd_send_signal, waitid,
};

use crate::ControlGroup;
use crate::program::refusal;
use crate::start::read_limit;

/// Stack of a thread that only waits, in bytes.
const STACK: usize = 64 << 10;

/// There is no room for the processes and threads that are needed.
#[derive(Debug, thiserror::Error)]
#[error("this needs {needed} more processes and threads, and the system has room for {found} ({why}): {advice}")]
pub struct NoRoom {
    pub needed: usize,
    /// The number that could be started.
    pub found: usize,
    why: io::Error,
    advice: String,
}

/// Starts `needed` threads at once and ends them again.
///
/// Other processes can take the room a moment later, so starting threads or processes can still fail.
///
/// # Errors
/// [`NoRoom`], if the system cannot start all of them.
pub fn check_room(needed: usize) -> Result<(), NoRoom> {
    let gate = Mutex::new(());
    std::thread::scope(|scope| {
        let closed = gate.lock();
        let wait = || drop(gate.lock());
        let mut starts = (0..needed).map(|_| Builder::new().stack_size(STACK).spawn_scoped(scope, wait));
        let failed = starts.by_ref().enumerate().find_map(|(found, start)| Some((found, start.err()?)));
        drop(closed);
        match failed {
            None => Ok(()),
            Some((found, why)) => Err(NoRoom { needed, found, advice: refusal(&why).unwrap_or_else(limits), why }),
        }
    })
}

/// The limits on processes and threads of this process, in words.
fn limits() -> String {
    let user = getrlimit(Resource::Nproc).current.map(|limit| format!("`ulimit -u` is {limit}"));
    let group = pids_limit(Path::new("/"))
        .map(|(folder, limit)| format!("pids.max of the control group {} is {limit}", folder.display()));
    let all: Vec<String> = group.into_iter().chain(user).collect();
    let all = if all.is_empty() { "no limit of its own is known".to_owned() } else { all.join(", ") };
    format!(
        "{all}; raise the limit (TasksMax= of a systemd unit, --pids-limit of a container, `ulimit -u`), or end other programs"
    )
}

/// A system call that this program cannot do without is refused.
#[derive(Debug, thiserror::Error)]
#[error("the system refuses {call}, without which no worker can be started and watched ({why}): {advice}")]
pub struct RefusedCall {
    call: &'static str,
    why: io::Error,
    advice: String,
}

/// Makes, once and without effect, the calls that start, watch and end workers. Libraries panic where some of them are refused.
///
/// # Errors
/// [`RefusedCall`], for the first that is refused by a filter or missing in the kernel.
pub fn check_calls() -> Result<(), RefusedCall> {
    let own = || pidfd_open(getpid(), PidfdFlags::empty());
    let calls: [(&'static str, &dyn Fn() -> io::Result<()>); 9] = [
        ("prlimit", &read_limit),
        ("prctl", &|| Ok(child_subreaper().map(drop)?)),
        ("socketpair", &|| UnixStream::pair().map(drop)),
        ("pipe2", &|| io::pipe().map(drop)),
        ("eventfd2", &|| Ok(eventfd(0, EventfdFlags::CLOEXEC).map(drop)?)),
        ("epoll_create1", &|| Ok(epoll::create(epoll::CreateFlags::CLOEXEC).map(drop)?)),
        ("pidfd_open", &|| Ok(own().map(drop)?)),
        // The default of this signal is to be ignored.
        ("pidfd_send_signal", &|| Ok(pidfd_send_signal(own()?, Signal::URG)?)),
        ("waitid", &|| match waitid(WaitId::PidFd(own()?.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG) {
            // This process is not its own child.
            Err(Errno::CHILD) | Ok(_) => Ok(()),
            Err(error) => Err(error.into()),
        }),
    ];
    let refused = |(call, make): (&'static str, &dyn Fn() -> io::Result<()>)| {
        let why = make().err()?;
        Some(RefusedCall { call, advice: refusal(&why)?, why })
    };
    calls.into_iter().find_map(refused).map_or(Ok(()), Err)
}

/// The lowest limit on processes and threads among this process's control groups and those around them, and its group. Files are read below
/// `root`.
pub fn pids_limit(root: &Path) -> Option<(PathBuf, u64)> {
    let groups = ControlGroup::of(root, "pids");
    let limit = |folder: &Path| {
        let text = fs::read_to_string(folder.join("pids.max")).ok()?;
        Some((folder.to_owned(), text.trim().parse().ok()?)) // "max" is no limit
    };
    groups.iter().flat_map(ControlGroup::around).filter_map(limit).min_by_key(|(_, limit)| *limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_a_few_threads() {
        check_room(5).unwrap();
    }

    #[test]
    fn what_workers_need_is_allowed_here_and_a_refusal_has_its_cause() {
        check_calls().unwrap();
        let refused = |number| refusal(&io::Error::from_raw_os_error(number));
        assert!(refused(libc::ENOSYS).is_some() && refused(libc::EPERM).is_some() && refused(libc::EAGAIN).is_none());
        let large = refused(libc::E2BIG).unwrap();
        assert!(large.contains("KiB the most; the kernel allows 128 KiB for one"), "{large}");
    }

    #[test]
    fn the_lowest_limit_of_the_groups_around_a_process_counts() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(pids_limit(root.path()), None);
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/self/cgroup", "0::/user/session\n");
        write("sys/fs/cgroup/user/session/pids.max", "max\n");
        write("sys/fs/cgroup/user/pids.max", "12\n");
        write("sys/fs/cgroup/pids.max", "400\n");
        assert_eq!(pids_limit(root.path()), Some((root.path().join("sys/fs/cgroup/user"), 12)));
        write("proc/self/cgroup", "8:pids:/job\n");
        write("sys/fs/cgroup/pids/job/pids.max", "4\n");
        assert_eq!(pids_limit(root.path()), Some((root.path().join("sys/fs/cgroup/pids/job"), 4)));
    }
}
