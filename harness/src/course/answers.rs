//! `lockstep course try`: grades the answers that belong to the course, and prints what a learner would read.

use std::path::Path;

use anyhow::Context;
use lockstep_grading::exercise::{Task, Tasks};
use lockstep_grading::grade::find;
use lockstep_grading::{Found, Lab, Options, Runner, learner};

use crate::exit::{Code, Refused};
use crate::lab_run::program_beside;
use crate::report::{Screen, whole_words};

/// Grades these answers of a lab, `TASK` or `TASK/NAME`, or all wrong ones if there are none: prints the full finding of a
/// single one, a table of several.
///
/// # Errors
/// [`Refused`] for an unknown answer, or a solution that is not built.
pub(super) fn try_out(root: &Path, lab: &Lab, answers: &[String], options: &Options) -> anyhow::Result<Code> {
    let (tasks, program) = (lab.tasks()?, program_beside(&lab.solution())?);
    let all = if answers.is_empty() { wrong(root, lab, &tasks)? } else { Vec::new() };
    let answers = if answers.is_empty() { &all } else { answers };
    let mut runner = Runner::new(&program, options);
    let mut grade = |answer: &String| -> anyhow::Result<(Task, Found)> {
        let task = task_of(root, lab, &tasks, answer).with_context(|| format!("lab {}", lab.number()))?;
        Ok((task.clone(), find(lab, &task.name, answer, options, &mut runner)?))
    };
    if let [answer] = answers {
        let (task, found) = grade(answer)?;
        println!("{}", learner::rendered(lab, &tasks, &task, &found, options.seed));
        return Ok(Code::Success);
    }
    let screen = Screen::new(false);
    let mut table = screen.look().table(&["answer", "verdict", "diagnosis"]);
    for answer in answers {
        let (_, found) = grade(answer)?;
        let (verdict, diagnosis) =
            found.map_or_else(|fault| (fault.verdict.words(), fault.diagnosis), |()| ("passed", String::new()));
        table.add_row([answer, verdict, &diagnosis]);
    }
    screen.line(whole_words(table, screen.look()));
    screen.line(format!("lab {}, seed {}: {} answers", lab.number(), options.seed, answers.len()));
    Ok(Code::Success)
}

fn wrong(root: &Path, lab: &Lab, tasks: &Tasks) -> anyhow::Result<Vec<String>> {
    let mut all = Vec::new();
    for Task { name, .. } in &tasks.tasks {
        all.extend(lab.answers(root, name)?.wrong.iter().map(|wrong| format!("{name}/{wrong}")));
    }
    Ok(all)
}

/// The task of this answer.
fn task_of<'a>(root: &Path, lab: &Lab, tasks: &'a Tasks, answer: &str) -> anyhow::Result<&'a Task> {
    let (name, other) = answer.split_once('/').map_or((answer, None), |(name, other)| (name, Some(other)));
    let task = tasks.find(name).map_err(|error| Refused(error.to_string()))?;
    if let Some(other) = other {
        let answers = lab.answers(root, name)?;
        if !answers.all().any(|name| name == other) {
            let names = answers.all().collect::<Vec<_>>().join(", ");
            return Err(Refused(format!("{name} has no answer {other}: there are {names}")).into());
        }
    }
    Ok(task)
}
