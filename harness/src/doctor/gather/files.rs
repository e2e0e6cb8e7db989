//! Room in file systems, and whether the snapshot folder can be written.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use rustix::fs::statvfs;

use super::super::facts::{Folder, Space};

/// The room where this path is; `None` if it does not exist.
pub(super) fn space(path: &Path) -> Option<Space> {
    let found = statvfs(path).ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    Some(Space {
        path: path.to_owned(),
        total: found.f_blocks * found.f_frsize,
        free: found.f_bavail * found.f_frsize,
        inodes: (found.f_files > 0).then_some(found.f_favail),
        kind: kind(&mounts, &real).unwrap_or_default(),
    })
}

/// The folder for snapshots. A small file is written in it, and removed.
pub(super) fn folder(path: PathBuf) -> Folder {
    let space = space(&path).filter(|_| path.is_dir());
    let unwritable = if space.is_some() { write_in(&path).err().map(|error| error.to_string()) } else { None };
    Folder { space, unwritable, hangs: false, path }
}

fn write_in(folder: &Path) -> std::io::Result<()> {
    let mut file = tempfile::Builder::new().prefix(".lockstep-doctor-").tempfile_in(folder)?;
    // More than a file system keeps next to the file's name.
    file.write_all(&[0; 1 << 16])?;
    file.as_file().sync_all()
}

/// The type of the file system that holds a path, in proc_pid_mountinfo(5).
fn kind(mounts: &str, path: &Path) -> Option<String> {
    let of_line = |line: &str| {
        let (mount, system) = line.split_once(" - ")?;
        let place = PathBuf::from(mount.split(' ').nth(4)?.replace("\\040", " "));
        path.starts_with(&place).then_some((place.components().count(), system.split(' ').next()?.to_owned()))
    };
    // Of mounts on the same place, the last one shows.
    mounts.lines().filter_map(of_line).max_by_key(|(depth, _)| *depth).map(|(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_and_last_mount_holds_a_path() {
        let mounts = "1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 0:5 / /home rw shared:1 - nfs4 server:/home rw\n\
                      3 2 0:6 / /home/a\\040b rw - tmpfs tmpfs rw\n4 1 0:7 / /home rw - lustre x rw\n";
        let found = |path: &str| kind(mounts, Path::new(path)).unwrap();
        assert_eq!(["/x", "/home/c", "/home/a b/c"].map(found), ["ext4", "lustre", "tmpfs"]);
    }

    #[test]
    fn says_why_a_folder_cannot_be_used() {
        let dir = tempfile::tempdir().unwrap();
        let good = folder(dir.path().to_owned());
        assert!(good.unwritable.is_none() && good.space.is_some_and(|space| space.total > 0));
        assert_eq!(folder(dir.path().join("absent")).space, None);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "nothing is left");
        let device = folder(PathBuf::from("/proc"));
        assert!(device.space.is_some() && device.unwritable.is_some(), "{device:?}");
    }
}
