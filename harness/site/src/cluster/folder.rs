//! Where a cluster keeps its files: its own folder, in one that only its user can enter. Also the ends of logs, for errors.

use std::fs::{self, DirBuilder, File};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use lockstep_contract::foreign;
use lockstep_paths::temporary_folder;
use lockstep_process::last_lines;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::getuid;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::ClusterName;
use crate::exit::Refused;

/// Nobody but the owner may do anything.
const PRIVATE: u32 = 0o700;
/// The longest path of a socket, in bytes (unix(7)).
const LONGEST_SOCKET: usize = 107;

/// The folder of one cluster.
#[derive(Clone, Debug)]
pub(super) struct Folder(PathBuf);

impl Folder {
    /// Where the cluster of this name is, or would be: in `$XDG_RUNTIME_DIR`, or the folder for temporary files.
    pub(super) fn of(name: &ClusterName) -> Self {
        Folder(base().join(name.to_string()))
    }

    /// The folder of a cluster that exists already.
    pub(super) fn at(path: &Path) -> Self {
        Folder(path.into())
    }

    /// Makes the folder, and the folders in it.
    pub(super) fn make(&self) -> anyhow::Result<()> {
        let longest = self.munge_socket();
        if longest.as_os_str().len() > LONGEST_SOCKET {
            let message = format!(
                "the path {} is too long for a socket: set XDG_RUNTIME_DIR to a folder with a shorter path",
                longest.display()
            );
            return Err(Refused(message).into());
        }
        make_private(&base())?;
        match DirBuilder::new().mode(PRIVATE).create(&self.0) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                let message =
                    format!("{} appeared meanwhile: another `lockstep cluster up` is running", self.0.display());
                return Err(Refused(message).into());
            }
            made => made.with_context(|| format!("cannot make the folder {}", foreign::path(&self.0)))?,
        }
        for name in ["log", "nodes", "local", "dev", "slurm"] {
            let path = self.0.join(name);
            fs::create_dir(&path).with_context(|| format!("cannot make the folder {}", foreign::path(&path)))?;
        }
        Ok(())
    }

    /// Keeps other commands from making or removing the cluster, as long as the descriptor is open.
    pub(super) fn lock(&self) -> anyhow::Result<File> {
        let folder = File::open(&self.0).with_context(|| format!("cannot open {}", foreign::path(&self.0)))?;
        match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => {
                let message =
                    format!("another command starts or ends the cluster in {}: wait for it", self.0.display());
                Err(Refused(message).into())
            }
            locked => locked.map(|()| folder).with_context(|| format!("cannot lock {}", foreign::path(&self.0))),
        }
    }

    /// Removes the folder with everything in it, and after the last cluster the folder around it.
    pub(super) fn remove(&self) -> anyhow::Result<()> {
        fs::remove_dir_all(&self.0).with_context(|| format!("cannot remove {}", foreign::path(&self.0)))?;
        let _ = fs::remove_dir(base()); // other clusters may be in it
        Ok(())
    }

    pub(super) fn exists(&self) -> bool {
        self.0.exists()
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// The path of a file of this name in the folder.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// What a machine's programs print, and what Slurm's daemons log.
    pub(super) fn log(&self, name: &str) -> PathBuf {
        self.0.join("log").join(name)
    }

    /// By which munged serves the whole cluster.
    pub(super) fn munge_socket(&self) -> PathBuf {
        self.file("munge.socket")
    }

    pub(super) fn write(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let path = self.file(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", foreign::path(&path)))
    }

    pub(super) fn save(&self, name: &str, value: &impl Serialize) -> anyhow::Result<()> {
        self.write(name, &serde_json::to_string(value)?)
    }

    /// What [`Folder::save`] has written.
    pub(super) fn load<T: DeserializeOwned>(&self, name: &str) -> anyhow::Result<T> {
        let path = self.file(name);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", foreign::path(&path)))?;
        serde_json::from_str(&text).with_context(|| format!("{} is not what `lockstep` wrote", foreign::path(&path)))
    }
}

/// The folder of all clusters of this user. Only its real path tells whether it is below a folder that each node has for itself.
fn base() -> PathBuf {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|folder| folder.is_absolute());
    let (around, name) = match runtime {
        Some(folder) => (folder, "lockstep-cluster".to_owned()),
        None => (temporary_folder().to_owned(), format!("lockstep-cluster-{}", getuid().as_raw())),
    };
    around.canonicalize().unwrap_or(around).join(name)
}

/// A folder that was made by somebody else, or that others may enter, is refused: its files decide what is run, maybe as root.
fn make_private(folder: &Path) -> anyhow::Result<()> {
    match DirBuilder::new().mode(PRIVATE).create(folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| format!("cannot make the folder {}", foreign::path(folder)));
        }
        _ => {}
    }
    let there = fs::symlink_metadata(folder).with_context(|| format!("cannot read {}", foreign::path(folder)))?;
    if there.is_dir() && there.uid() == getuid().as_raw() && there.mode() & 0o077 == 0 {
        return Ok(());
    }
    let message =
        format!("{} is not a folder that only you may enter: remove it, or set XDG_RUNTIME_DIR", folder.display());
    Err(Refused(message).into())
}

// ---- ends of logs

/// How much of a log is shown with an error, in lines.
const TAIL: usize = 12;

/// The last lines of a log, for the end of an error; nothing, if it has none.
pub(super) fn tail(log: &Path) -> String {
    let last = last_lines(log, TAIL);
    if last.is_empty() {
        return String::new();
    }
    let name = log.file_name().unwrap_or_default().to_string_lossy();
    format!("\n  the end of {name}:{}", last.iter().map(|line| format!("\n  | {line}")).collect::<String>())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn makes_a_folder_that_only_its_user_may_enter() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("base");
        make_private(&folder).unwrap();
        assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
        make_private(&folder).unwrap();
    }

    #[test]
    fn only_one_command_at_a_time_makes_or_removes_a_cluster() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::at(dir.path());
        let lock = folder.lock().unwrap();
        assert!(folder.lock().unwrap_err().to_string().contains("another command starts or ends"));
        drop(lock);
        folder.lock().unwrap();
    }

    #[test]
    fn refuses_a_folder_that_others_may_enter_or_have_put_there() {
        let dir = tempfile::tempdir().unwrap();
        let (open, link) = (dir.path().join("open"), dir.path().join("link"));
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o750)).unwrap();
        symlink(dir.path(), &link).unwrap();
        for folder in [open, link] {
            assert!(make_private(&folder).unwrap_err().is::<Refused>(), "{}", folder.display());
        }
    }

    #[test]
    fn shows_the_end_of_a_log_and_nothing_of_an_empty_one() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("n1.log");
        assert_eq!(tail(&log), "");
        std::fs::write(&log, (1..=20).map(|line| format!("line {line}\n")).collect::<String>()).unwrap();
        let tail = tail(&log);
        assert!(tail.starts_with("\n  the end of n1.log:\n  | line 9\n") && tail.ends_with("\n  | line 20"), "{tail}");
    }
}
