//! `lockstep progress`: shows which tasks are done.

use std::path::Path;

use clap::Args;
use lockstep_grading::exercise::Task;
use lockstep_grading::progress::Progress;
use lockstep_grading::{Lab, checksums};

use crate::course::{checkout, find_all};
use crate::exit::Code;
use crate::report::Screen;

/// Shows which tasks of the exercises are done
#[derive(Args)]
pub(crate) struct Options {
    /// Labs by number or name [default: all]
    #[arg(value_name = "LAB")]
    labs: Vec<String>,
}

impl Options {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        let (root, screen) = (checkout()?, Screen::new(false));
        let progress = Progress::read(&root)?;
        let mut table = screen.look().table(&["lab", "task", "what", "how far"]);
        let (mut done, mut all) = (0, 0);
        for lab in find_all(&self.labs)? {
            for task in lab.tasks()?.tasks {
                let passed = progress.of(lab.number(), &task.name);
                (done, all) = (done + usize::from(passed.is_some()), all + 1);
                let far = passed.map_or_else(|| begun(&root, &lab, &task).into(), |passed| format!("✓ {}", passed.at));
                table.add_row([lab.number(), &task.name, &task.title, &far]);
            }
        }
        screen.line(table);
        screen.line(format!("{done} of {all} tasks are done"));
        Ok(Code::Success)
    }
}

fn begun(root: &Path, lab: &Lab, task: &Task) -> &'static str {
    let untouched = checksums::untouched(&lab.exercise(root), &task.file());
    if untouched { "not started" } else { "begun" }
}
