//! Limits on what an answer may use. No right answer comes near them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use lockstep_process::proc::{self, Status};

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
        self.broken_by(&descendants(std::process::id() as i32), folder)
    }

    fn broken_by(&self, taken: &[Taken], folder: &Path) -> Option<Finding> {
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
fn descendants(this: i32) -> Vec<Taken> {
    let all: BTreeMap<i32, (i32, Taken)> = proc::pids().filter_map(|pid| Some((pid, read(pid)?))).collect();
    let below = proc::descendants(this, &all.iter().map(|(pid, (parent, _))| (*pid, *parent)).collect());
    all.iter().filter(|(pid, _)| below.contains(pid)).map(|(_, (_, taken))| *taken).collect()
}

/// The parent of a process and what it uses.
fn read(pid: i32) -> Option<(i32, Taken)> {
    let status = Status::of(pid)?;
    let number = |field| status.number(field).unwrap_or(0);
    let taken = Taken { threads: number("Threads"), memory: number("VmRSS") << 10 };
    Some((i32::try_from(status.number("PPid")?).ok()?, taken))
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
        let (parent, taken) = read(std::process::id() as i32).unwrap();
        assert_eq!(parent, std::os::unix::process::parent_id() as i32);
        assert!(taken.threads >= 1 && taken.memory >= 1 << 20, "{taken:?}");
        assert_eq!(read(i32::MAX), None);
    }

    #[test]
    fn names_the_exceeded_limit() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("in")).unwrap();
        fs::write(folder.path().join("in/file"), [0; 1000]).unwrap();
        let taken = [Taken { threads: 3, memory: 5 << 20 }; 2];
        let diagnosis = |bounds: Bounds| bounds.broken_by(&taken, folder.path()).map(|finding| finding.diagnosis);
        let bounds = Bounds { disk: 1000, threads: 6, memory: 10 << 20 };
        assert_eq!(diagnosis(bounds), None);
        for (bounds, named) in [
            (Bounds { disk: 999, ..bounds }, "written"),
            (Bounds { threads: 5, ..bounds }, "6 threads and processes; 5 are allowed"),
            (Bounds { memory: 9 << 20, ..bounds }, "10 MiB of memory; 9 MiB are allowed"),
        ] {
            assert!(diagnosis(bounds).unwrap().contains(named), "{named}");
        }
    }
}
