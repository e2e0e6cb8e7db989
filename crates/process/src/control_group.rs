//! The control groups of this process, by which the kernel limits and counts what a job uses. In both of their versions.

use std::fs;
use std::path::{Path, PathBuf};

/// A control group that this process is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlGroup {
    /// Its folder. In a container this is the host's path, which may not exist.
    pub folder: PathBuf,
    /// Where its hierarchy is mounted. In a container this is the container's own group.
    pub mount: PathBuf,
}

impl ControlGroup {
    /// The groups that control this resource, such as `memory`; files are read below `root`.
    pub fn of(root: &Path, controller: &str) -> Vec<Self> {
        let text = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        let unified = root.join("sys/fs/cgroup");
        // hierarchy:controllers:path; version 2 has number 0 and no controllers.
        let of_line = |line: &str| {
            let mut parts = line.splitn(3, ':');
            let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
            let mount = match controllers {
                "" => unified.clone(),
                list if list.split(',').any(|name| name == controller) => unified.join(controller),
                _ => return None,
            };
            Some(ControlGroup { folder: mount.join(path.trim_start_matches('/')), mount })
        };
        text.lines().filter_map(of_line).collect()
    }

    /// Its folder and those of the groups around it.
    pub fn around(&self) -> impl Iterator<Item = &Path> {
        self.folder.ancestors().take_while(|folder| folder.starts_with(&self.mount))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_both_versions() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        assert_eq!(ControlGroup::of(root, "memory"), []);
        fs::create_dir_all(root.join("proc/self")).unwrap();
        fs::write(root.join("proc/self/cgroup"), "4:memory:/slurm/job_7\n2:cpu,cpuacct:/\nnoise\n0::/a\n").unwrap();
        let mount = root.join("sys/fs/cgroup");
        let group = |mount: &Path, path: &str| ControlGroup { folder: mount.join(path), mount: mount.to_owned() };
        let unified = group(&mount, "a");
        let memory = group(&mount.join("memory"), "slurm/job_7");
        assert_eq!(ControlGroup::of(root, "memory"), [memory.clone(), unified.clone()]);
        assert_eq!(ControlGroup::of(root, "cpuacct"), [group(&mount.join("cpuacct"), ""), unified.clone()]);
        assert_eq!(ControlGroup::of(root, "pids"), [unified]);
        let around: Vec<_> = memory.around().collect();
        assert_eq!(around, ["slurm/job_7", "slurm", ""].map(|path| memory.mount.join(path)));
    }
}
