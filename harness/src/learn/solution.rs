//! `lockstep solution`: shows the course's own answer, for comparison.

use std::fs;

use anyhow::Context;
use clap::Args;
use lockstep_contract::foreign;
use lockstep_grading::progress::Progress;
use lockstep_grading::skeleton;

use super::task;
use crate::course::{checkout, find};
use crate::exit::{Code, Refused};

/// Show the course's own answer to a task that is done
#[derive(Args)]
pub(crate) struct Options {
    /// The lab, by number or name
    lab: String,
    /// The task
    task: String,
    /// Show it although the task is not done
    #[arg(long)]
    reveal: bool,
}

impl Options {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        let (root, lab) = (checkout()?, find(&self.lab)?);
        let tasks = lab.tasks()?;
        let task = task(&tasks, &self.task)?;
        if !self.reveal && Progress::read(&root)?.of(lab.number(), &task.name).is_none() {
            let (number, name) = (lab.number(), &task.name);
            return Err(Refused(format!(
                "{name} is not done yet: `lockstep hint {number} {name}` helps; --reveal shows the answer all the same"
            ))
            .into());
        }
        let file = lab.own_answer(&root, &task.name);
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", foreign::path(&file)))?;
        print!("{}", skeleton::answer(&text));
        Ok(Code::Success)
    }
}
