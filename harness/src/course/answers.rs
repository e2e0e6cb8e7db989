//! `lockstep course try`: grades the answers that belong to the course, and prints what a learner would read.

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
pub(super) fn try_out(lab: &Lab, answers: &[String], options: &Options) -> anyhow::Result<Code> {
    let (tasks, program) = (lab.tasks()?, program_beside(&lab.solution())?);
    let all = wrong(&tasks);
    let answers = if answers.is_empty() { &all } else { answers };
    let mut runner = Runner::new(&program, options);
    let mut grade = |answer: &String| -> anyhow::Result<(Task, Found)> {
        let task = task_of(&tasks, answer).with_context(|| format!("lab {}", lab.number()))?;
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

fn wrong(tasks: &Tasks) -> Vec<String> {
    let of_task = |task: &Task| {
        let name = task.name.clone();
        task.wrong.clone().into_iter().map(move |wrong| format!("{name}/{}", wrong.name))
    };
    tasks.tasks.iter().flat_map(of_task).collect()
}

/// The task of this answer.
fn task_of<'a>(tasks: &'a Tasks, answer: &str) -> Result<&'a Task, Refused> {
    let (name, variant) = answer.split_once('/').map_or((answer, None), |(name, variant)| (name, Some(variant)));
    let kept =
        |task: &&Task| task.name == name && variant.is_none_or(|variant| task.variants().any(|name| name == variant));
    let refused = || Refused(format!("the course keeps no answer {answer}: its lab.toml names those that there are"));
    tasks.tasks.iter().find(kept).ok_or_else(refused)
}
