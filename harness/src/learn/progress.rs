//! `lockstep progress`: shows which tasks are done.

use std::path::Path;

use clap::Args;
use comfy_table::LineStyle;
use lockstep_grading::exercise::Task;
use lockstep_grading::progress::Progress;
use lockstep_grading::{Lab, checksums};

use super::route::Route;
use crate::course::{checkout, find_all};
use crate::exit::Code;
use crate::report::{Screen, whole_words};

/// Show how many tasks of each exercise are done, and which is next; for labs that you name, each task; for a route, all its stops
#[derive(Args)]
pub(crate) struct Options {
    /// Labs by number or name [default: all]
    #[arg(value_name = "LAB")]
    labs: Vec<String>,
    /// Follow a route of the book's introduction instead: morning (two hours), day, whole
    #[arg(long, value_name = "NAME", conflicts_with = "labs")]
    route: Option<String>,
}

impl Options {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        let (root, screen) = (checkout()?, Screen::new(false));
        let progress = Progress::read(&root)?;
        if let Some(name) = &self.route {
            Route::find(name)?.show(&root, &progress, &screen)?;
            return Ok(Code::Success);
        }
        let heads: &[&str] = if self.labs.is_empty() {
            &["lab", "done", "next"]
        } else {
            &["lab", "task", "what", "minutes", "how far"]
        };
        let look = screen.look();
        let mut table = look.table(heads);
        table.load_style(look.style().row_separator(LineStyle::none()));
        let (mut done, mut all, mut next) = (0, 0, None);
        for lab in find_all(&self.labs)? {
            let tasks = lab.tasks()?.tasks;
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
            next = next.or_else(|| Some((lab.package(), first?)));
        }
        screen.line(whole_words(table, look));
        screen.line(format!("{done} of {all} tasks are done"));
        if let Some((package, (task, minutes))) = next {
            screen.line(format!("next: cargo test -p {package} -- {task} (about {minutes} minutes)"));
        }
        Ok(Code::Success)
    }
}

pub(super) fn begun(root: &Path, lab: &Lab, task: &Task) -> &'static str {
    let untouched = checksums::untouched(&lab.exercise(root), &task.file());
    if untouched { "not started" } else { "begun" }
}
