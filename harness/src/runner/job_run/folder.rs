//! The folder of one run: the paths of its parts, and the files in it that should not be left in the end.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The folder of a run.
#[derive(Clone, Debug)]
pub(crate) struct RunFolder(PathBuf);

impl RunFolder {
    /// Makes the folder, with the folders that must exist before the start.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn make(path: PathBuf) -> io::Result<Self> {
        let folder = RunFolder(path);
        for part in [folder.events(), folder.weights(), folder.snapshots(), folder.tmp()] {
            fs::create_dir_all(part)?;
        }
        Ok(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Events of ranks and agents.
    pub(crate) fn events(&self) -> PathBuf {
        self.0.join("events")
    }

    /// The ranks' final weights.
    pub(crate) fn weights(&self) -> PathBuf {
        self.0.join("weights")
    }

    /// Models in that folder other than the ranks' final weights, such as the best one.
    pub(crate) fn models(&self) -> Vec<PathBuf> {
        let is_model =
            |name: &String| name.ends_with(".safetensors") && !name.starts_with("rank-") && !is_temporary(name);
        names(&self.weights()).into_iter().filter(is_model).map(|name| self.weights().join(name)).collect()
    }

    /// Results of the ranks of labs without weights.
    pub(crate) fn results(&self) -> PathBuf {
        self.0.join("results")
    }

    /// Snapshots.
    pub(crate) fn snapshots(&self) -> PathBuf {
        self.0.join("snapshots")
    }

    /// Snapshots of a machine with a disk of its own.
    pub(crate) fn snapshots_of(&self, machine: usize) -> PathBuf {
        self.snapshots().join(format!("machine-{machine}"))
    }

    /// The run's TMPDIR, the only place for its temporary files.
    pub(crate) fn tmp(&self) -> PathBuf {
        self.0.join("tmp")
    }

    /// The launcher's logs.
    pub(crate) fn logs(&self) -> PathBuf {
        self.0.join("logs")
    }

    /// The faults that the ranks inject themselves.
    pub(crate) fn faults(&self) -> PathBuf {
        self.0.join("faults.json")
    }

    /// The output of a node.
    pub(crate) fn output(&self, node: usize) -> PathBuf {
        self.0.join(format!("node-{node}.txt"))
    }

    /// Temporary files that are left, on the disks of these machines if each has its own. A half-written snapshot of a
    /// killed job is removed by the job's next start, so it counts only if the job has `finished`.
    pub(crate) fn leftovers(&self, finished: bool, machines: &[usize]) -> Vec<String> {
        let disks = machines.iter().map(|machine| self.snapshots_of(*machine));
        let folders = disks.chain([self.snapshots(), self.weights()]);
        let halves = folders.flat_map(|folder| {
            let left = names(&folder).into_iter().filter(|name| finished && is_temporary(name));
            left.map(move |name| folder.join(name))
        });
        let tmp = names(&self.tmp()).into_iter().map(|name| self.tmp().join(name));
        let shown = |path: PathBuf| path.strip_prefix(&self.0).unwrap_or(&path).display().to_string();
        tmp.chain(halves).map(shown).collect()
    }
}

/// Returns true for the names that unfinished files have in this project: hidden, or with such an ending.
fn is_temporary(name: &str) -> bool {
    name.starts_with('.') || [".tmp", ".partial", ".part"].iter().any(|end| name.contains(end))
}

fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<_> =
        entries.filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned())).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_models_other_than_the_final_weights() {
        let dir = tempfile::tempdir().unwrap();
        let folder = RunFolder::make(dir.path().join("run")).unwrap();
        for name in ["rank-0.safetensors", "best.safetensors", ".best.tmp.safetensors", "notes.txt"] {
            fs::write(folder.weights().join(name), "").unwrap();
        }
        assert_eq!(folder.models(), [folder.weights().join("best.safetensors")]);
        assert_eq!(folder.leftovers(true, &[]), ["weights/.best.tmp.safetensors"]);
    }

    #[test]
    fn lists_the_temporary_files_that_are_left() {
        let dir = tempfile::tempdir().unwrap();
        let folder = RunFolder::make(dir.path().join("run")).unwrap();
        assert_eq!(folder.leftovers(true, &[0]), Vec::<String>::new());
        fs::write(folder.tmp().join("x"), "").unwrap();
        fs::write(folder.snapshots().join("snapshot-8.safetensors"), "").unwrap();
        fs::write(folder.snapshots().join(".snapshot-12.tmp"), "").unwrap();
        fs::create_dir(folder.snapshots_of(3)).unwrap();
        fs::write(folder.snapshots_of(3).join(".x.partial"), "").unwrap();
        assert_eq!(folder.leftovers(true, &[]), ["tmp/x", "snapshots/.snapshot-12.tmp"]);
        let own = "snapshots/machine-3/.x.partial";
        assert_eq!(folder.leftovers(true, &[3]), ["tmp/x", own, "snapshots/.snapshot-12.tmp"]);
        assert_eq!(folder.leftovers(false, &[3]), ["tmp/x"]);
    }
}
