//! The folder of one run: where its parts lie, and which files in it should not be there in the end.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The folder of a run.
#[derive(Clone, Debug)]
pub(crate) struct RunFolder(PathBuf);

impl RunFolder {
    /// Makes it, with what must exist before the start.
    ///
    /// # Errors
    /// The system's.
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

    /// Where ranks and agents write their events.
    pub(crate) fn events(&self) -> PathBuf {
        self.0.join("events")
    }

    /// Where the ranks save their final weights.
    pub(crate) fn weights(&self) -> PathBuf {
        self.0.join("weights")
    }

    /// Models in that folder that are not the ranks' final weights, such as the best one.
    pub(crate) fn models(&self) -> Vec<PathBuf> {
        let is_model =
            |name: &String| name.ends_with(".safetensors") && !name.starts_with("rank-") && !is_temporary(name);
        names(&self.weights()).into_iter().filter(is_model).map(|name| self.weights().join(name)).collect()
    }

    /// Where the ranks of labs without weights save what they held.
    pub(crate) fn results(&self) -> PathBuf {
        self.0.join("results")
    }

    /// Where snapshots are saved.
    pub(crate) fn snapshots(&self) -> PathBuf {
        self.0.join("snapshots")
    }

    /// Where a machine with a disk of its own saves them.
    pub(crate) fn snapshots_of(&self, machine: usize) -> PathBuf {
        self.snapshots().join(format!("machine-{machine}"))
    }

    /// The only place for temporary files that the run is told of.
    pub(crate) fn tmp(&self) -> PathBuf {
        self.0.join("tmp")
    }

    /// The launcher's logs.
    pub(crate) fn logs(&self) -> PathBuf {
        self.0.join("logs")
    }

    /// The faults that the ranks inflict on themselves.
    pub(crate) fn faults(&self) -> PathBuf {
        self.0.join("faults.json")
    }

    /// What a node printed.
    pub(crate) fn output(&self, node: usize) -> PathBuf {
        self.0.join(format!("node-{node}.txt"))
    }

    /// Temporary files that are left, on the disks of these machines, if each has its own. The half of a snapshot that a killed job left is none of them: the next start of the job
    /// sweeps it away, so it counts only in one that `finished`.
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

/// By the names that unfinished files have in this project: hidden, or with an end that says so.
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
    fn finds_models_beside_the_final_weights() {
        let dir = tempfile::tempdir().unwrap();
        let folder = RunFolder::make(dir.path().join("run")).unwrap();
        for name in ["rank-0.safetensors", "best.safetensors", ".best.tmp.safetensors", "notes.txt"] {
            fs::write(folder.weights().join(name), "").unwrap();
        }
        assert_eq!(folder.models(), [folder.weights().join("best.safetensors")]);
        assert_eq!(folder.leftovers(true, &[]), ["weights/.best.tmp.safetensors"]);
    }

    #[test]
    fn tells_which_temporary_files_are_left() {
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
