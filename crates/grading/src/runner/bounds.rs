//! Limits on what an answer may use. No right answer comes near them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::{Finding, Verdict};

/// Limits for all ranks of one call together.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Bytes in all files of the private folder, including what the ranks print.
    pub disk: u64,
    /// Processes and threads, including libtorch's.
    pub threads: u64,
    /// Bytes of memory.
    pub memory: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds { disk: 256 << 20, threads: 400, memory: 8 << 30 }
    }
}

/// What a process uses.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Taken {
    threads: u64,
    memory: u64,
}

impl Bounds {
    /// Returns a finding if the descendants of this process or the files in the folder exceed a limit.
    pub(super) fn broken(&self, folder: &Path) -> Option<Finding> {
        let taken = descendants(std::process::id());
        let (threads, memory) =
            taken.iter().fold((0, 0), |(threads, memory), of| (threads + of.threads, memory + of.memory));
        let mebibytes = |bytes: u64| format!("{} MiB", bytes >> 20);
        let disk = size(folder);
        let diagnosis = if threads > self.threads {
            format!("the ranks run {threads} threads and processes; {} are allowed", self.threads)
        } else if memory > self.memory {
            format!("the ranks use {} of memory; {} are allowed", mebibytes(memory), mebibytes(self.memory))
        } else if disk > self.disk {
            format!("the ranks have printed and written {}; {} are allowed", mebibytes(disk), mebibytes(self.disk))
        } else {
            return None;
        };
        Some(Finding::new(Verdict::OutOfBounds, diagnosis))
    }
}

/// What each descendant of this process uses.
fn descendants(this: u32) -> Vec<Taken> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let all: BTreeMap<u32, (u32, Taken)> = pids.filter_map(|pid| Some((pid, read(pid)?))).collect();
    let below = |pid: u32| {
        let parents = std::iter::successors(Some(pid), |pid| all.get(pid).map(|(parent, _)| *parent));
        parents.skip(1).take(all.len()).any(|of| of == this)
    };
    all.iter().filter(|(pid, _)| below(**pid)).map(|(_, (_, taken))| *taken).collect()
}

/// The parent of a process and what it uses, from `/proc/PID/status` (proc(5)).
fn read(pid: u32) -> Option<(u32, Taken)> {
    parse(&String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/status")).ok()?))
}

fn parse(status: &str) -> Option<(u32, Taken)> {
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_ascii_whitespace().next()?.parse::<u64>().ok()
    };
    let taken = Taken { threads: field("Threads").unwrap_or(0), memory: field("VmRSS").unwrap_or(0) << 10 };
    Some((u32::try_from(field("PPid")?).ok()?, taken))
}

/// Bytes of all files below a folder. Does not follow links.
fn size(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let of = |entry: fs::DirEntry| match entry.metadata() {
        Ok(data) if data.is_dir() => size(&entry.path()),
        Ok(data) => data.len(),
        Err(_) => 0,
    };
    entries.map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_a_process_uses() {
        let status = "Name:\tx\nPPid:\t7\nVmRSS:\t  2048 kB\nThreads:\t3\n";
        assert_eq!(parse(status), Some((7, Taken { threads: 3, memory: 2 << 20 })));
        assert_eq!(parse("Name: x\n"), None);
    }

    #[test]
    fn names_the_exceeded_limit() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("in")).unwrap();
        fs::write(folder.path().join("in/file"), [0; 1000]).unwrap();
        let bounds = Bounds { disk: 999, ..Bounds::default() };
        assert!(bounds.broken(folder.path()).unwrap().diagnosis.contains("written"));
        assert_eq!(Bounds { disk: 1000, ..bounds }.broken(folder.path()), None);
        let none = Bounds { threads: 0, memory: 0, ..Bounds::default() };
        // This process is not its own descendant, and it has no children here.
        assert_eq!(none.broken(folder.path()), None);
    }
}
