//! Help for learners: `lockstep hint` prints hints, one level at a time; `solution` shows the course's own answer; `progress` shows which tasks
//! are done; `reset` restores an exercise, and keeps the previous files in the folder `backups`.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use chrono::Local;
use clap::Args;
use comfy_table::LineStyle;
use lockstep_contract::foreign;
use lockstep_grading::exercise::Task;
use lockstep_grading::progress::Progress;
use lockstep_grading::{Lab, Language, Workplace, package, seat};

use crate::exit::{Code, Refused};
use crate::labs::{find, find_all};
use crate::report::{Screen, Stdout, whole_words};
use crate::route::{Route, begun};
use crate::{task, workplace};

/// Help with a task of an exercise, a little at a time
#[derive(Args)]
pub struct Hint {
    /// The lab, by number or name
    lab: String,
    /// The task
    task: String,
    /// Level of help: 1 a nudge, 2 the idea, 3 nearly the answer
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=3))]
    level: u8,
    /// In Python instead of Rust
    #[arg(long)]
    python: bool,
}

impl Hint {
    pub fn exec(self) -> anyhow::Result<Code> {
        let lab = find(&self.lab)?;
        let tasks = lab.tasks()?;
        let task = task(&tasks, &self.task)?;
        let language = workplace().map_or(Language::Python, |place| Language::of(place.root(), self.python));
        let screen = Screen::new(false);
        screen.line(format_args!("{}: {}", task.name, task.title));
        for (level, hint) in (1..=self.level).zip(&task.hints_in(language)) {
            screen.line(format_args!("\n{level}. {hint}"));
        }
        if self.level < 3 {
            let level = self.level + 1;
            screen.line(format_args!(
                "\nmore: lockstep hint {} {}{} --level {level}",
                lab.number(),
                task.name,
                language.option()
            ));
        }
        screen.line(format_args!("read: {}, \"{}\"", Workplace::chapter(&tasks.chapter), task.section));
        Ok(Code::Success)
    }
}

/// Show the course's own answer to a task that is done
#[derive(Args)]
pub struct Solution {
    /// The lab, by number or name
    lab: String,
    /// The task
    task: String,
    /// Show it although the task is not done
    #[arg(long)]
    reveal: bool,
    /// In Python instead of Rust
    #[arg(long)]
    python: bool,
}

impl Solution {
    pub fn exec(self) -> anyhow::Result<Code> {
        let (root, lab) = (workplace()?.into_root(), find(&self.lab)?);
        let tasks = lab.tasks()?;
        let task = task(&tasks, &self.task)?;
        if !self.reveal && Progress::read(&root)?.of(lab.number(), &task.name).is_none() {
            let (number, name) = (lab.number(), &task.name);
            return Err(Refused(format!(
                "{name} is not done yet: `lockstep hint {number} {name}` helps; --reveal shows the answer anyway"
            ))
            .into());
        }
        let language = Language::of(&root, self.python);
        let Some(text) = lab.answer_text(&root, &task.name, language)? else {
            return Err(Refused(format!("{} of lab {} has no answer in Python", task.name, lab.number())).into());
        };
        Stdout.write_all(package::answer(&text, language).as_bytes()).context("cannot write to stdout")?;
        Ok(Code::Success)
    }
}

/// Show how many tasks of each exercise are done, and which is next; for labs that you name, each task; for a route, all its stops
#[derive(Args)]
pub struct ShowProgress {
    /// Labs by number or name [default: all]
    #[arg(value_name = "LAB")]
    labs: Vec<String>,
    /// Follow a route of the book's introduction instead: morning (two hours), day, whole
    #[arg(long, value_name = "NAME", conflicts_with = "labs")]
    route: Option<String>,
}

impl ShowProgress {
    pub fn exec(self) -> anyhow::Result<Code> {
        let (place, screen) = (workplace()?, Screen::new(false));
        let (language, root) = (place.language(), place.into_root());
        let progress = Progress::read(&root)?;
        seat::join(&root);
        if let Some(name) = &self.route {
            Route::find(name)?.show(&root, &progress, &screen)?;
            return Ok(Code::Success);
        }
        let heads: &[&str] = if self.labs.is_empty() {
            &["lab", "done", "next"]
        } else {
            &["lab", "task", "what", "minutes", "how far"]
        };
        let style = screen.style();
        let mut table = style.table(heads);
        table.load_style(style.table_style().row_separator(LineStyle::none()));
        let (mut done, mut all, mut next) = (0, 0, None);
        for lab in find_all(&self.labs)? {
            let tasks = lab.tasks_in(&root, language)?.tasks;
            if tasks.is_empty() {
                continue;
            }
            let open: Vec<&Task> =
                tasks.iter().filter(|task| progress.of(lab.number(), &task.name).is_none()).collect();
            (done, all) = (done + tasks.len() - open.len(), all + tasks.len());
            let first = open.first().map(|task| (task.name.clone(), task.minutes));
            if self.labs.is_empty() {
                let far = format!("{} of {}", tasks.len() - open.len(), tasks.len());
                table.add_row([lab.number(), &far, first.as_ref().map_or("✓", |(name, _)| name)]);
            } else {
                for task in &tasks {
                    let passed = progress.of(lab.number(), &task.name);
                    let far =
                        passed.map_or_else(|| begun(&root, &lab, task).into(), |passed| format!("✓ {}", passed.at));
                    let minutes = task.minutes.to_string();
                    table.add_row([lab.number(), &task.name, &task.title, &minutes, &far]);
                }
            }
            next = next.or_else(|| Some((lab.number(), first?)));
        }
        screen.line(whole_words(table, style));
        screen.line(format!("{done} of {all} tasks are done"));
        if let Some((number, (task, minutes))) = next {
            screen.line(format!("next: lockstep grade {number} {task} (about {minutes} minutes)"));
        }
        Ok(Code::Success)
    }
}

/// Restore an exercise, or one task of it, to its original state, and keep a copy of your files
#[derive(Args)]
pub struct Reset {
    /// The lab, by number or name
    lab: String,
    /// One task; by default all tasks of the lab
    task: Option<String>,
    /// In Python instead of Rust
    #[arg(long)]
    python: bool,
}

impl Reset {
    pub fn exec(self) -> anyhow::Result<Code> {
        let (root, lab) = (workplace()?.into_root(), find(&self.lab)?);
        let (tasks, language) = (lab.tasks()?, Language::of(&root, self.python));
        let file = match &self.task {
            Some(name) => Some(task(&tasks, name)?.file_in(language)),
            None => None,
        };
        let (given, folder) = (package::files_in(&root, &lab, language)?, lab.learners(&root, language));
        if given.is_empty() {
            return Err(Refused(format!("lab {} has no tasks in Python", lab.number())).into());
        }
        let kept = back_up(&root, &lab, language)?;
        let what = match &file {
            Some(file) => {
                let text = given.get(file).with_context(|| format!("the solution has no {}", foreign::path(file)))?;
                package::write_file(&folder.join(file), text)?;
                folder.join(file)
            }
            None => {
                package::write(&root, &lab, language, &given)?;
                folder
            }
        };
        let gone = Progress::forget(&root, lab.number(), self.task.as_deref())?;
        let screen = Screen::new(false);
        screen.line(format_args!("restored {}", what.strip_prefix(&root).unwrap_or(&what).display()));
        if !gone.is_empty() {
            screen.line(format_args!("no longer recorded as done: {}", gone.join(", ")));
        }
        if let Some(kept) = kept {
            screen.line(format_args!("your previous files are in {}", kept.display()));
        }
        Ok(Code::Success)
    }
}

/// Copies the exercise and returns the copy's path, or `None` if there is no exercise.
fn back_up(root: &Path, lab: &Lab, language: Language) -> anyhow::Result<Option<PathBuf>> {
    let from = lab.learners(root, language);
    if !from.exists() {
        return Ok(None);
    }
    let backups = root.join("backups");
    let package = match language {
        Language::Rust => lab.package(),
        Language::Python => format!("py-{}", lab.number()),
    };
    let name = format!("{package}-{}", Local::now().format("%Y-%m-%d-%H%M%S"));
    // Two copies within a second get different folders.
    let names = std::iter::once(name.clone()).chain((2..).map(|number| format!("{name}-{number}")));
    let to = names.map(|name| backups.join(name)).find(|to| !to.exists()).unwrap_or_default();
    copy(&from, &to).with_context(|| format!("cannot keep a copy in {}; nothing was changed", foreign::path(&to)))?;
    Ok(Some(to))
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
