//! The shared folder. The head node makes a folder in it, holds a lock there and replaces a file over and over; the others look.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::super::facts::{Lock, View};

/// The file that the head node locks.
const LOCK: &str = "lock";
/// The file that it replaces, and the name under which it writes it first.
const CURRENT: &str = "current";
const NEXT: &str = "next";
/// How often the others read the file.
const READS: usize = 200;
/// The head node rests between two replacements: a file server has other clients.
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
    ///
    /// # Errors
    /// The system's.
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
        let replacer = thread::spawn(move || {
            let mut round: u8 = 1;
            while !stopped.load(Ordering::Relaxed) && replace(&place, round).is_ok() {
                round = round.wrapping_add(1);
                thread::park_timeout(REST);
            }
        });
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
        // NFS says so of a file that was replaced while it was open; the next attempt finds the new one.
        Err(error) if error.kind() == ErrorKind::StaleNetworkFileHandle => None,
        Err(error) => Some(error.to_string()),
        Ok(bytes) if bytes.len() == SIZE && bytes.iter().all(|byte| *byte == bytes[0]) => None,
        Ok(bytes) => Some(format!("{} of {SIZE} bytes", bytes.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
