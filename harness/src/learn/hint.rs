//! `lockstep hint`: prints a task's hints, one level at a time.

use clap::Args;

use super::task;
use crate::course::find;
use crate::exit::Code;

/// Help with a task of an exercise, a little at a time
#[derive(Args)]
pub(crate) struct Options {
    /// The lab, by number or name
    lab: String,
    /// The task
    task: String,
    /// Level of help: 1 a nudge, 2 the idea, 3 nearly the answer
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=3))]
    level: u8,
}

impl Options {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        let lab = find(&self.lab)?;
        let tasks = lab.tasks()?;
        let task = task(&tasks, &self.task)?;
        println!("{}: {}", task.name, task.title);
        for (level, hint) in (1..=self.level).zip(&task.hints) {
            println!("\n{level}. {hint}");
        }
        if self.level < 3 {
            println!("\nmore: lockstep hint {} {} --level {}", lab.number(), task.name, self.level + 1);
        }
        println!("read: book/src/{}, \"{}\"", tasks.chapter, task.section);
        Ok(Code::Success)
    }
}
