//! How much an answer may take: no right one comes near these bounds.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use lockstep_process::proc::{self, Status};

use crate::{Fault, Verdict};

/// What the ranks of one call may take together.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Bytes in all files of the private folder, what is printed among them.
    pub disk: u64,
    /// Processes and threads, those of libtorch among them.
    pub threads: u64,
    /// Bytes of memory.
    pub memory: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds { disk: 256 << 20, threads: 400, memory: 8 << 30 }
    }
}

/// What a process takes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Taken {
    threads: u64,
    memory: u64,
}

impl Bounds {
    /// The fault, if what is below this process or in the folder is too much.
    pub(super) fn broken(&self, folder: &Path) -> Option<Fault> {
        let taken = descendants(std::process::id() as i32);
        let (threads, memory) =
            taken.iter().fold((0, 0), |(threads, memory), of| (threads + of.threads, memory + of.memory));
        let mebibytes = |bytes: u64| format!("{} MiB", bytes >> 20);
        let disk = size(folder);
        let told = if threads > self.threads {
            format!("the ranks run {threads} threads and processes, of {} that are allowed", self.threads)
        } else if memory > self.memory {
            format!("the ranks take {} of memory, of {} that are allowed", mebibytes(memory), mebibytes(self.memory))
        } else if disk > self.disk {
            format!(
                "the ranks have printed and written {}, of {} that are allowed",
                mebibytes(disk),
                mebibytes(self.disk)
            )
        } else {
            return None;
        };
        Some(Fault::new(Verdict::OutOfBounds, told))
    }
}

/// What each process below this one takes.
fn descendants(this: i32) -> Vec<Taken> {
    let all: BTreeMap<i32, (i32, Taken)> = proc::pids().filter_map(|pid| Some((pid, read(pid)?))).collect();
    let below = proc::descendants(this, &all.iter().map(|(pid, (parent, _))| (*pid, *parent)).collect());
    all.iter().filter(|(pid, _)| below.contains(pid)).map(|(_, (_, taken))| *taken).collect()
}

/// Parent and share of a process.
fn read(pid: i32) -> Option<(i32, Taken)> {
    let status = Status::of(pid)?;
    let number = |field| status.number(field).unwrap_or(0);
    let taken = Taken { threads: number("Threads"), memory: number("VmRSS") << 10 };
    Some((i32::try_from(status.number("PPid")?).ok()?, taken))
}

/// Bytes of all files below a folder; links are not followed.
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
    fn reads_what_a_process_takes() {
        let (parent, taken) = read(std::process::id() as i32).unwrap();
        assert_eq!(parent, std::os::unix::process::parent_id() as i32);
        assert!(taken.threads >= 1 && taken.memory >= 1 << 20, "{taken:?}");
        assert_eq!(read(i32::MAX), None);
    }

    #[test]
    fn names_what_is_too_much() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("in")).unwrap();
        fs::write(folder.path().join("in/file"), [0; 1000]).unwrap();
        let bounds = Bounds { disk: 999, ..Bounds::default() };
        assert!(bounds.broken(folder.path()).unwrap().diagnosis.contains("written"));
        assert_eq!(Bounds { disk: 1000, ..bounds }.broken(folder.path()), None);
        let none = Bounds { threads: 0, memory: 0, ..Bounds::default() };
        // This process is not below itself, and has no children here.
        assert_eq!(none.broken(folder.path()), None);
    }
}
