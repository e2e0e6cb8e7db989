//! Processors, memory and limits, from `/proc`, `/sys` and getrlimit(2).

use std::fs;
use std::path::{Path, PathBuf};

use lockstep_process::ControlGroup;
use rustix::process::{Resource, getrlimit};
use rustix::thread::sched_getaffinity;

use super::super::facts::{Cpu, Limits, Memory};
use super::read::line;

/// Version 1 shows "no limit" as a number of pages near 2^63.
const UNLIMITED: u64 = 1 << 60;

/// The host name, and the architecture.
pub(super) fn names() -> (String, String) {
    let uname = rustix::system::uname();
    let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
    (text(uname.nodename()), text(uname.machine()))
}

/// Processors; files are read below `root`.
pub(super) fn cpu(root: &Path) -> Cpu {
    let online = line(root.join("sys/devices/system/cpu/online")).map_or(0, |ranges| count(&ranges));
    let allowed = sched_getaffinity(None).map_or(online, |set| set.count() as usize);
    Cpu { online: online.max(allowed), allowed, quota: quota(root) }
}

/// Memory; files are read below `root`.
pub(super) fn memory(root: &Path) -> Memory {
    let text = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
    };
    let limits = groups(root, "memory").into_iter().filter_map(|group| {
        let text = line(group.join("memory.max")).or_else(|| line(group.join("memory.limit_in_bytes")))?;
        text.parse::<u64>().ok().filter(|limit| *limit < UNLIMITED)
    });
    Memory { total: field("MemTotal"), available: field("MemAvailable"), limit: limits.min() }
}

/// Limits of this process.
pub(super) fn limits() -> Limits {
    Limits {
        open_files: getrlimit(Resource::Nofile).maximum,
        processes: getrlimit(Resource::Nproc).current,
        locked_memory: getrlimit(Resource::Memlock).current,
        address_space: getrlimit(Resource::As).current,
        core: getrlimit(Resource::Core).current,
        core_pattern: line("/proc/sys/kernel/core_pattern").unwrap_or_default(),
    }
}

/// The number of processors that the control groups pay for.
fn quota(root: &Path) -> Option<f64> {
    let paid = groups(root, "cpu").into_iter().filter_map(|group| {
        let number = |text: Option<String>| text?.parse::<f64>().ok();
        let (quota, period) = match line(group.join("cpu.max")) {
            Some(text) => {
                let (quota, period) = text.split_once(' ')?;
                (quota.parse().ok()?, period.parse().ok()?)
            }
            None => (number(line(group.join("cpu.cfs_quota_us")))?, number(line(group.join("cpu.cfs_period_us")))?),
        };
        (quota > 0.0 && period > 0.0).then_some(quota / period)
    });
    paid.min_by(f64::total_cmp)
}

/// The folders of this process's control groups and of those around them, for one controller.
fn groups(root: &Path, controller: &str) -> Vec<PathBuf> {
    ControlGroup::of(root, controller).iter().flat_map(ControlGroup::around).map(Path::to_owned).collect()
}

/// The length of the kernel's list `0-3,5`.
fn count(ranges: &str) -> usize {
    let size = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(last.parse::<usize>().ok()?.checked_sub(first.parse().ok()?)? + 1)
    };
    ranges.split(',').filter_map(size).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    #[test]
    fn the_lowest_limit_of_nested_groups_counts_in_both_versions() {
        let new = root(&[
            ("proc/self/cgroup", "0::/job/step\n"),
            ("proc/meminfo", "MemTotal:  2048 kB\nMemAvailable: 1024 kB\n"),
            ("sys/fs/cgroup/job/memory.max", "1048576\n"),
            ("sys/fs/cgroup/job/step/memory.max", "max\n"),
            ("sys/fs/cgroup/job/step/cpu.max", "150000 100000\n"),
            ("sys/fs/cgroup/job/cpu.max", "max 100000\n"),
        ]);
        let found = memory(new.path());
        assert_eq!((found.total, found.available, found.limit), (Some(2 << 20), Some(1 << 20), Some(1 << 20)));
        assert_eq!(quota(new.path()), Some(1.5));
        let old = root(&[
            ("proc/self/cgroup", "4:memory:/a\n2:cpu,cpuacct:/a\n0::/\n"),
            ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "524288\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "50000\n"),
            ("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n"),
            ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"),
            ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
        ]);
        assert_eq!((memory(old.path()).limit, quota(old.path())), (Some(1 << 19), Some(0.5)));
        let none = root(&[]);
        assert_eq!((memory(none.path()), quota(none.path())), (Memory::default(), None));
    }

    #[test]
    fn counts_processors_from_ranges() {
        assert_eq!(["0-3,5", "0", "", "x", "3-1"].map(count), [5, 1, 0, 0, 0]);
    }
}
