//! Whether the system has room for the processes and threads that this process is about to start, and allows the calls that it needs.
//!
//! The user's limit (`ulimit -u`) and the control group's (`pids.max`) count both alike. At a limit, much of what starts threads panics or
//! waits for ever, in libraries, too. So a command first starts as many threads as it will need, and reports in one sentence what is
//! missing.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread::Builder;
use std::{fs, io};

use lockstep_contract::foreign;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;
use rustix::process::{
    PidfdFlags, Resource, Signal, WaitId, WaitIdOptions, child_subreaper, getpid, getrlimit, pidfd_open,
    pidfd_send_signal, waitid,
};

use crate::ControlGroup;
use crate::proc::Status;
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

/// Who refuses a system call with this error, and what to do; `None` if it is another kind of error.
pub fn refusal(error: &io::Error) -> Option<String> {
    if error.kind() == io::ErrorKind::ArgumentListTooLong {
        return Some(too_large());
    }
    let is_missing = error.raw_os_error() == Some(libc::ENOSYS);
    if !is_missing && error.raw_os_error() != Some(libc::EPERM) {
        return None;
    }
    let filtered = Status::of_this_process().is_some_and(|status| status.number("Seccomp") == Some(2));
    Some(match (filtered, is_missing) {
        (true, _) => "this process runs under a seccomp filter (`grep Seccomp: /proc/self/status` says 2), as in a container or a sandbox: \
                      allow the call in its profile, update the container's runtime, or start the container with \
                      --security-opt seccomp=unconfined"
            .to_owned(),
        (false, true) => format!(
            "this kernel ({}) does not have it: Linux 5.4 or newer is needed",
            rustix::system::uname().release().to_string_lossy()
        ),
        (false, false) => "a security module (SELinux, AppArmor) or a missing capability forbids it: see `dmesg` and the audit log".to_owned(),
    })
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

/// How much this process's arguments and variables take, which its children get.
fn too_large() -> String {
    let variables = std::env::vars_os().map(|(name, value)| (name.len() + value.len() + 2, Some(name)));
    let arguments = std::env::args_os().map(|word| (word.len() + 1, None));
    let all: Vec<(usize, Option<OsString>)> = variables.chain(arguments).collect();
    let kib = |bytes: usize| bytes.div_ceil(1024);
    let sum = kib(all.iter().map(|(bytes, _)| bytes).sum());
    let largest = all.into_iter().max_by_key(|(bytes, _)| *bytes);
    let largest = largest.map_or_else(String::new, |(bytes, name)| {
        let name = name.map_or_else(|| "an argument".to_owned(), |name| foreign::path(Path::new(&name)));
        format!("{name} with {}", kib(bytes))
    });
    format!(
        "the launcher's variables and arguments, to which it adds a few, take {sum} KiB, {largest} KiB the most; the kernel allows 128 KiB \
         for one and a quarter of `ulimit -s` for all: unset what the program does not need, or put it into a file"
    )
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
