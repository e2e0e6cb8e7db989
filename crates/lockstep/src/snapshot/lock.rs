//! Ensures one job per folder: rank 0 holds a lock on it for as long as it may save there.
//!
//! The kernel releases the lock when the process ends for any reason, so a killed job can start again at once. On a local disk the lock
//! is on the folder itself (flock(2)), so it leaves no file.
//!
//! On a network file system the server holds the lock, and it is on a file in the folder: NFS and FUSE pass locks of files on to the
//! server, but lock a folder on this node alone (`nfs_dir_operations` in Linux's fs/nfs/dir.c has no `flock`). When a node is lost, nothing
//! informs the server, which keeps the lock until its lease ends: 90 seconds for Linux's NFS server. So a held lock is retried for longer
//! than that.
//!
//! **Fencing**: an attempt of a job that the scheduler has replaced saves nothing more once a later attempt has saved.
//! A lock ends with its process. When the network is cut, a scheduler starts the job again elsewhere, while the processes on the cut
//! node train on: now two attempts of one job write to one folder. Where the lock is still held, the later attempt takes the folder
//! over; where a file server has dropped the lock, both think that they hold it. So each snapshot has the number of its attempt, and
//! a writer looks for later ones before it gives a file its name.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::statfs;

use super::file;
use super::folder;
use super::meta::Attempt;

/// How long a killed process on this machine may take to exit: it may have to finish a write first.
const ON_THIS_MACHINE: Duration = Duration::from_secs(10);
/// Longer than the lease of a file server and the grace period after its restart (`nfsv4leasetime`, nfsd(7): 90 s each).
const ON_A_SERVER: Duration = Duration::from_secs(200);
/// The interval between attempts.
const PAUSE: Duration = Duration::from_millis(500);
/// The interval between messages about the wait.
const SAY: Duration = Duration::from_secs(30);
/// The types of file systems with locks on a server (linux/magic.h, or their own headers for those outside the kernel).
const SERVED: [u32; 10] = [
    0x6969,      // NFS
    0xff53_4d42, // CIFS
    0xfe53_4d42, // SMB2
    0x517b,      // SMB
    0x00c3_6400, // Ceph
    0x5346_414f, // AFS
    0x0bd0_0bd0, // Lustre
    0x4750_4653, // GPFS
    0x1983_0326, // BeeGFS
    0x6573_5546, // FUSE
];

/// The file that is locked on a server.
const LOCK: &str = ".snapshot-lock";

/// The result of claiming the folder.
pub(super) enum Claim {
    /// The folder is this job's until this is dropped.
    Held(File),
    /// Another job held it all the time.
    Taken(Duration),
    /// Unknown: the folder cannot be created, or the file system has no locks.
    Unknown(io::Error),
}

/// Claims `folder`, creating it if it does not exist. Waits until it is free, for at most `limit`, by default as long as its
/// file system takes to forget a lost node. `say` receives occasional messages about the wait.
pub(super) fn claim(folder: &Path, limit: Option<Duration>, say: impl FnMut(Duration, Duration)) -> Claim {
    let limit = limit.unwrap_or_else(|| patience(folder));
    let begun = Instant::now();
    let pause = |left: Duration| {
        thread::sleep(PAUSE.min(left));
        begun.elapsed()
    };
    until_free(limit, || ask(folder), pause, say)
}

/// Claims `folder` if it is free now.
pub(super) fn try_claim(folder: &Path) -> Option<File> {
    match ask(folder) {
        Claim::Held(file) => Some(file),
        Claim::Taken(_) | Claim::Unknown(_) => None,
    }
}

/// Retries until the folder is free or `limit` has passed; `pause` waits for at most the given time, and returns the time since
/// the start.
fn until_free(
    limit: Duration,
    mut ask: impl FnMut() -> Claim,
    mut pause: impl FnMut(Duration) -> Duration,
    mut say: impl FnMut(Duration, Duration),
) -> Claim {
    let (mut waited, mut next) = (Duration::ZERO, Duration::ZERO);
    loop {
        match ask() {
            Claim::Taken(_) if waited < limit => {}
            Claim::Taken(_) => return Claim::Taken(waited),
            other => return other,
        }
        if waited >= next {
            say(waited, limit);
            next = waited + SAY;
        }
        waited = pause(limit.saturating_sub(waited));
    }
}

fn ask(folder: &Path) -> Claim {
    let locked = || -> io::Result<Option<File>> {
        folder::make(folder)?;
        let served = is_served(folder);
        let file = lockable(folder, served)?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => return Ok(None),
            locked => locked?,
        }
        if served {
            forget_list(folder)?;
        }
        Ok(Some(file))
    };
    match locked() {
        Ok(Some(file)) => Claim::Held(file),
        Ok(None) => Claim::Taken(Duration::ZERO),
        Err(error) => Claim::Unknown(error),
    }
}

/// What stands for the folder.
fn lockable(folder: &Path, served: bool) -> io::Result<File> {
    if !served {
        return File::open(folder);
    }
    // NFS refuses an exclusive lock on a file that is not open for writing.
    File::options().write(true).create(true).truncate(false).open(folder.join(LOCK))
}

/// Makes this node forget what it knows of the folder, by a change: that may be old, as sshfs keeps lists for 20 s.
fn forget_list(folder: &Path) -> io::Result<()> {
    let (prefix, suffix) = folder::TEMPORARY;
    tempfile::Builder::new().prefix(prefix).suffix(suffix).tempfile_in(folder).map(drop)
}

/// How long a lock may outlive the process that held it.
fn patience(folder: &Path) -> Duration {
    let there = folder.ancestors().find(|above| above.exists()).unwrap_or(Path::new("."));
    if is_served(there) { ON_A_SERVER } else { ON_THIS_MACHINE }
}

fn is_served(folder: &Path) -> bool {
    // The type has the machine's word size; its lower half is sufficient.
    statfs(folder).is_ok_and(|of| SERVED.contains(&(of.f_type as u32)))
}

impl Attempt {
    /// The number of the latest attempt of this job that has saved in `folder`; `None` if none has.
    fn latest(&self, folder: &Path) -> Option<u32> {
        let found = folder::list(folder).unwrap_or_default();
        let attempts = found.iter().filter_map(|one| file::attempt(&one.path));
        attempts.filter(|one| one.job == self.job).map(|one| one.number).max()
    }

    /// Checks that no later attempt has saved in `folder`; returns the latest that has.
    pub(super) fn check(&self, folder: &Path) -> Result<Option<u32>, TakenOver> {
        match self.latest(folder) {
            Some(later) if later > self.number => Err(TakenOver { own: self.number, later }),
            latest => Ok(latest),
        }
    }
}

/// A later attempt of the job has saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("attempt {later} of this job has saved there, and this is attempt {own}")]
pub(super) struct TakenOver {
    pub(super) own: u32,
    pub(super) later: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that becomes free after `lease`, and a clock that advances only during waits.
    fn waits(lease: Duration, limit: Duration) -> (Claim, Vec<u64>) {
        let now = std::cell::Cell::new(Duration::ZERO);
        let ask = || match now.get() < lease {
            true => Claim::Taken(Duration::ZERO),
            false => Claim::Held(File::open("/dev/null").unwrap()),
        };
        let pause = |left: Duration| {
            now.set(now.get() + PAUSE.min(left));
            now.get()
        };
        let mut said = Vec::new();
        let claim = until_free(limit, ask, pause, |waited, _| said.push(waited.as_secs()));
        (claim, said)
    }

    #[test]
    fn outlasts_the_lease_of_a_lost_node_and_says_what_it_waits_for() {
        let (claim, said) = waits(Duration::from_secs(90), ON_A_SERVER);
        assert!(matches!(claim, Claim::Held(_)));
        assert_eq!(said, [0, 30, 60]);
    }

    #[test]
    fn gives_up_on_a_living_job_after_the_limit() {
        let (claim, said) = waits(Duration::MAX, Duration::from_millis(700));
        assert!(matches!(claim, Claim::Taken(waited) if waited == Duration::from_millis(700)));
        assert_eq!(said, [0]);
    }

    #[test]
    fn does_not_wait_for_a_free_folder_or_with_a_limit_of_zero() {
        assert!(matches!(waits(Duration::ZERO, ON_A_SERVER), (Claim::Held(_), said) if said.is_empty()));
        let (claim, said) = waits(Duration::MAX, Duration::ZERO);
        assert!(matches!(claim, Claim::Taken(Duration::ZERO)) && said.is_empty());
    }

    #[test]
    fn uses_the_limit_of_the_parents_file_system_for_a_missing_folder() {
        assert_eq!(patience(Path::new("/proc/absent/snapshots")), ON_THIS_MACHINE);
    }

    #[test]
    fn locks_a_file_on_a_server_and_leaves_none_on_a_local_disk() {
        let folder = tempfile::tempdir().unwrap();
        let files = || std::fs::read_dir(folder.path()).unwrap().count();
        for (served, left) in [(false, 0), (true, 1)] {
            let (first, second) = (lockable(folder.path(), served).unwrap(), lockable(folder.path(), served).unwrap());
            first.try_lock().unwrap();
            assert!(matches!(second.try_lock(), Err(TryLockError::WouldBlock)));
            assert_eq!(files(), left);
        }
        // As NFS demands for an exclusive lock.
        let file = lockable(folder.path(), true).unwrap();
        assert!(rustix::fs::fcntl_getfl(&file).unwrap().contains(rustix::fs::OFlags::WRONLY));
        // It is no snapshot, and no temporary file that another job sweeps.
        folder::sweep(folder.path());
        assert_eq!((folder::list(folder.path()).unwrap(), files()), (vec![], 1));
    }

    #[test]
    fn finds_no_attempt_in_a_folder_without_snapshots_or_with_files_of_others() {
        let folder = tempfile::tempdir().unwrap();
        let attempt = Attempt { job: "SLURM_JOB_ID=17".into(), number: 0 };
        assert_eq!(attempt.latest(&folder.path().join("absent")), None);
        std::fs::write(folder.path().join("snapshot-000001-00000000.safetensors"), "no header").unwrap();
        assert_eq!(attempt.check(folder.path()), Ok(None));
    }
}
