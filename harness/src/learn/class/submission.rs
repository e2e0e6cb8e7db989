//! A learner's submission for a lab: the files of the tasks, and nothing else.

use std::fs;
use std::path::{Path, PathBuf};

use lockstep_grading::Lab;
use lockstep_grading::exercise::Task;

/// Maximum length of an answer, in bytes.
const LONGEST: u64 = 1 << 20;

/// The folder with a lab's answers.
#[derive(Debug, PartialEq)]
pub(super) struct Handed(PathBuf);

impl Handed {
    /// Finds a lab's answers in a learner's folder, if there are any.
    pub(super) fn find(learner: &Path, lab: &Lab) -> Option<Self> {
        let places =
            [format!("labs/{}/exercise/src", lab.name), format!("{}/src", lab.package()), format!("{}/src", lab.name)];
        let found = places.into_iter().map(|place| learner.join(place)).find(|place| place.is_dir());
        found.map(Handed)
    }

    /// The text of a task's answer.
    ///
    /// # Errors
    /// Why it cannot be read, for the report. Links and devices are not followed.
    pub(super) fn read(&self, task: &Task) -> Result<String, String> {
        let name = format!("{}.rs", task.name);
        let path = self.0.join(&name);
        let data = fs::symlink_metadata(&path).map_err(|error| format!("cannot read src/{name}: {error}"))?;
        if !data.is_file() {
            return Err(format!("src/{name} is no plain file"));
        }
        if data.len() > LONGEST {
            return Err(format!("src/{name} has {} bytes, of {LONGEST} that are allowed", data.len()));
        }
        fs::read_to_string(&path).map_err(|error| format!("cannot read src/{name}: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_plain_files_of_the_tasks_from_each_layout() {
        let lab = crate::course::find("02").unwrap();
        let task = &lab.tasks().unwrap().tasks[0];
        for place in ["labs/02-spawn-ddp/exercise/src", "ex-02/src", "02-spawn-ddp/src"] {
            let learner = tempfile::tempdir().unwrap();
            assert_eq!(Handed::find(learner.path(), &lab), None);
            let source = learner.path().join(place);
            fs::create_dir_all(&source).unwrap();
            let handed = Handed::find(learner.path(), &lab).unwrap();
            assert!(handed.read(task).unwrap_err().starts_with("cannot read src/shard.rs"));
            fs::write(source.join("shard.rs"), "answer").unwrap();
            assert_eq!(handed.read(task).unwrap(), "answer");
        }
    }

    #[test]
    fn refuses_links_and_endless_files() {
        let lab = crate::course::find("02").unwrap();
        let task = &lab.tasks().unwrap().tasks[0];
        let learner = tempfile::tempdir().unwrap();
        let file = learner.path().join("ex-02/src/shard.rs");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &file).unwrap();
        let handed = Handed::find(learner.path(), &lab).unwrap();
        assert!(handed.read(task).unwrap_err().contains("no plain file"));
        fs::remove_file(&file).unwrap();
        fs::write(&file, vec![b' '; LONGEST as usize + 1]).unwrap();
        assert!(handed.read(task).unwrap_err().contains("bytes"));
    }
}
