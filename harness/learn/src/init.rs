//! `lockstep init`: makes a folder with the course's tasks in Python, in which the learner's commands work without a checkout.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use lockstep_contract::{foreign, is_checkout};
use lockstep_grading::labs::LABS;
use lockstep_grading::{Language, MARKER, Python, checksums, package};

use crate::exit::{Code, Refused};
use crate::report::{Screen, count};

/// The first lines of the file that marks the folder.
const MARK: &str = "# `lockstep init` made this folder: the learner's commands look for this file.\n";
/// A task to begin with: its lab and its name.
const FIRST: [&str; 2] = ["05", "mean"];

/// Make a folder with the course's tasks in Python, to work in without a checkout; in such a folder, add the tasks that it lacks
#[derive(Args)]
pub struct Init {
    /// The folder, which is created if it is missing
    #[arg(value_name = "DIR", default_value = ".", value_parser = lockstep_paths::parse_folder)]
    folder: PathBuf,
}

impl Init {
    pub fn exec(self) -> anyhow::Result<Code> {
        let made = init(&self.folder)?;
        let (screen, shown) = (Screen::new(false), foreign::path(&self.folder));
        if made.is_empty() {
            screen.line(format_args!("{shown} has all tasks in Python already: nothing was changed"));
            return Ok(Code::Success);
        }
        screen.line(format_args!(
            "made {} in {}",
            count(made.len(), "task"),
            foreign::path(&self.folder.join("tasks"))
        ));
        let go = if self.folder == Path::new(".") { String::new() } else { format!("cd {shown} && ") };
        let [lab, task] = FIRST;
        screen.line(format_args!("next: {go}lockstep grade {lab} {task}"));
        if let Err(why) = Python::for_answers() {
            screen.line(format_args!("answers in Python need PyTorch: {why}"));
        }
        Ok(Code::Success)
    }
}

/// Makes the folder, or adds what it lacks; returns the paths of the tasks that were written.
fn init(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if is_checkout(folder) {
        let why =
            "is a checkout of the course, which has the tasks: `lockstep grade 05 mean --python`, in python/tasks";
        return Err(Refused(format!("{} {why}", foreign::path(folder))).into());
    }
    let cannot = || format!("cannot make {}", foreign::path(folder));
    fs::create_dir_all(folder).with_context(cannot)?;
    let is_new = !folder.join(MARKER).is_file();
    if is_new && fs::read_dir(folder).with_context(cannot)?.next().is_some() {
        let why = "is not empty: name a new folder, such as `lockstep init first-steps`";
        return Err(Refused(format!("{} {why}", foreign::path(folder))).into());
    }
    if is_new {
        fs::write(folder.join(MARKER), MARK).with_context(cannot)?;
        fs::write(folder.join("README.md"), readme()).with_context(cannot)?;
    }
    let mut made = Vec::new();
    for lab in LABS {
        let tasks = lab.learners(folder, Language::Python);
        let is_task = |name: &Path| name.extension().is_some_and(|end| end == Language::Python.extension());
        let (files, lists): (Vec<_>, Vec<_>) =
            package::files_in(folder, lab, Language::Python)?.into_iter().partition(|(name, _)| is_task(name));
        for (name, text) in files {
            let path = tasks.join(&name);
            // What the learner has written stays. A task that is as an older course gave it becomes the new one.
            let is_new = fs::read_to_string(&path).map_or(true, |here| here != text);
            if !path.exists() || is_new && checksums::untouched(&tasks, &name) {
                package::write_file(&path, &text)?;
                made.push(path);
            }
        }
        // The list of checksums is the course's, and the one that was here has been asked.
        lists.iter().try_for_each(|(name, text)| package::write_file(&tasks.join(name), text))?;
    }
    Ok(made)
}

fn readme() -> String {
    let [lab, task] = FIRST;
    format!(
        "# Tasks of Lockstep\n\n\
         Each file in `tasks` is a task: its text, and a function for you to write.\n\n\
         - `lockstep grade {lab} {task}` calls your function on real ranks, and explains the first thing that is wrong.\n\
         - `lockstep watch` grades the task that you save, and names the next one when it passes.\n\
         - `lockstep hint {lab} {task}` helps a little at a time.\n\
         - `lockstep solution {lab} {task}` shows the course's answer when yours has passed.\n\
         - `lockstep progress` shows what is done; `lockstep reset {lab} {task}` restores a task, and keeps what you had written.\n\
         - `lockstep book` opens the chapters that go with the tasks.\n"
    )
}

#[cfg(test)]
mod tests {
    use lockstep_grading::Workplace;

    use super::*;

    #[test]
    fn a_folder_gets_the_tasks_that_it_lacks_and_keeps_what_was_written() {
        let outer = tempfile::tempdir().unwrap();
        let folder = outer.path().join("mine");
        let made = init(&folder).unwrap();
        let tasks = LABS.iter().map(|lab| lab.tasks_in(&folder, Language::Python).unwrap().tasks.len()).sum::<usize>();
        assert_eq!(made.len(), tasks);
        assert!(made.contains(&folder.join("tasks/05_collectives/mean.py")), "{made:?}");
        assert_eq!(Workplace::around(&made[0]), Some(Workplace::Folder(folder.clone())));
        assert_eq!(readme().lines().count(), 10);
        fs::write(&made[0], "mine").unwrap();
        fs::remove_file(&made[1]).unwrap();
        assert_eq!(init(&folder).unwrap(), [made[1].clone()]);
        assert_eq!(fs::read_to_string(&made[0]).unwrap(), "mine");
        assert!(init(&folder).unwrap().is_empty());
    }

    #[test]
    fn refuses_a_checkout_and_a_folder_with_other_things() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("Cargo.lock"), "").unwrap();
        let error = init(folder.path()).unwrap_err().to_string();
        assert!(error.contains("is not empty: name a new folder"), "{error}");
        fs::create_dir(folder.path().join("labs")).unwrap();
        let error = init(folder.path()).unwrap_err().to_string();
        assert!(error.contains("is a checkout of the course"), "{error}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
