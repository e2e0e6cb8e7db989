//! Whether the system has room for the processes and threads that this process is about to start.
//!
//! The user's limit (`ulimit -u`) and the control group's (`pids.max`) count both alike. At a limit, much of what starts threads panics or
//! waits for ever, in libraries, too. So a command first starts as many threads as it will need, and reports in one sentence what is
//! missing.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread::Builder;

use rustix::process::{Resource, getrlimit};

use crate::ControlGroup;

/// Stack of a thread that only waits, in bytes.
const STACK: usize = 64 << 10;

/// There is no room for the processes and threads that are needed.
#[derive(Debug, thiserror::Error)]
#[error(
    "this needs {needed} more processes and threads, and the system has room for {found} ({why}): {limits}; raise the limit (TasksMax= of \
     a systemd unit, --pids-limit of a container, `ulimit -u`), or end other programs"
)]
pub struct NoRoom {
    pub needed: usize,
    /// The number that could be started.
    pub found: usize,
    why: io::Error,
    limits: String,
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
            Some((found, why)) => Err(NoRoom { needed, found, why, limits: limits() }),
        }
    })
}

/// The limits on processes and threads of this process, in words.
fn limits() -> String {
    let user = getrlimit(Resource::Nproc).current.map(|limit| format!("`ulimit -u` is {limit}"));
    let group = pids_limit(Path::new("/"))
        .map(|(folder, limit)| format!("pids.max of the control group {} is {limit}", folder.display()));
    let all: Vec<String> = group.into_iter().chain(user).collect();
    if all.is_empty() { "no limit of its own is known".to_owned() } else { all.join(", ") }
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
