//! Checks a lab's exercise for completeness, as far as its files show it. The solutions' own tests check that answers get their
//! verdicts.

use std::collections::BTreeSet;
use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use lockstep_grading::exercise::{Task, Tasks};
use lockstep_grading::{Lab, checksums, package};

/// Minimum number of wrong answers per lab.
const WRONG: usize = 4;
/// Minimum number of tasks per lab.
const TASKS: usize = 3;
/// How long a task may take, in minutes.
const MINUTES: RangeInclusive<u32> = 5..=20;

/// The faults, one per line; empty if the lab is complete.
pub(super) fn lacks(root: &Path, lab: &Lab) -> Vec<String> {
    let with_lab = |fault: String| format!("labs/{}: {fault}", lab.name);
    let tasks = match lab.tasks() {
        Ok(tasks) => tasks,
        Err(error) => return vec![with_lab(format!("{error:#}"))],
    };
    let mut faults = out_of_step(root, lab);
    faults.extend(too_few(root, lab, &tasks));
    faults.extend(without_text(root, &tasks));
    faults.extend(without_grading(root, lab, &tasks));
    faults.into_iter().map(with_lab).collect()
}

/// Compares the exercise with the one generated from the solution, and the solution's list of its modules with what is there. A learner's
/// changes are not faults of the course: then the list of checksums is right, and the file differs from it.
fn out_of_step(root: &Path, lab: &Lab) -> Vec<String> {
    let files = match package::files(root, lab) {
        Ok(files) => files,
        Err(error) => return vec![format!("{error:#}")],
    };
    let folder = lab.exercise(root);
    let command = format!("lockstep course skeleton {}", lab.number());
    let given = checksums::read(&folder);
    let stale = |(path, text): (&std::path::PathBuf, &String)| {
        let now = fs::read_to_string(folder.join(path)).unwrap_or_default();
        let sum = checksums::line(path, text);
        let listed = given.get(&*path.to_string_lossy()).is_some_and(|given| sum.starts_with(given));
        let right = if path.ends_with(checksums::FILE) { now == *text } else { listed };
        (!right).then(|| format!("exercise/{} does not follow from the solution: {command}", path.display()))
    };
    let main = lab.tasks_folder(root).join(package::MAIN);
    let stale_main =
        package::solution_main(root, lab).is_ok_and(|text| fs::read_to_string(main).unwrap_or_default() != text);
    let main = stale_main.then(|| format!("tasks/{} does not list what is there: {command}", package::MAIN));
    files.iter().filter_map(stale).chain(main).collect()
}

fn too_few(root: &Path, lab: &Lab, tasks: &Tasks) -> Vec<String> {
    let (mut faults, mut wrong, mut right) = (Vec::new(), 0, 0);
    for task in &tasks.tasks {
        match lab.answers(root, &task.name) {
            Ok(answers) => (wrong, right) = (wrong + answers.wrong.len(), right + answers.right.len()),
            Err(error) => faults.push(format!("{error:#}")),
        }
    }
    if tasks.tasks.len() < TASKS {
        faults.push(format!("{} tasks, of {TASKS} at least", tasks.tasks.len()));
    }
    if wrong < WRONG {
        faults.push(format!("{wrong} wrong answers, of {WRONG} at least"));
    }
    if right == 0 {
        faults.push("no unusual right answer".into());
    }
    faults
}

/// Tasks without a section in the chapter, with an empty hint, or too long.
fn without_text(root: &Path, tasks: &Tasks) -> Vec<String> {
    let chapter = root.join("book/src").join(&tasks.chapter);
    let text = fs::read_to_string(&chapter).unwrap_or_default();
    let headings: BTreeSet<&str> = text.lines().map(|line| line.trim_start_matches('#').trim()).collect();
    let section = |task: &Task| {
        (!headings.contains(task.section.as_str()))
            .then(|| format!("{} has no section \"{}\" for {}", tasks.chapter, task.section, task.name))
    };
    let hints = |task: &Task| {
        task.hints.iter().any(|hint| hint.trim().is_empty()).then(|| format!("{} has an empty hint", task.name))
    };
    let minutes = |task: &Task| {
        let (name, minutes, (least, most)) = (&task.name, task.minutes, MINUTES.into_inner());
        (!MINUTES.contains(&minutes)).then(|| format!("{name} takes {minutes} minutes, not {least} to {most}"))
    };
    tasks.tasks.iter().flat_map(|task| [section(task), hints(task), minutes(task)]).flatten().collect()
}

/// Tasks without a function `grade` that grades them.
fn without_grading(root: &Path, lab: &Lab, tasks: &Tasks) -> Vec<String> {
    let files = tasks.tasks.iter().map(|task| lab.grader(root, &task.name));
    let grades = |file: &PathBuf| fs::read_to_string(file).unwrap_or_default().contains("pub(crate) fn grade(");
    let name = |file: &PathBuf| file.strip_prefix(lab.folder(root)).unwrap_or(file).display().to_string();
    files.filter(|file| !grades(file)).map(|file| format!("{} has no function grade", name(&file))).collect()
}
