//! The tests of a lab's solution: the course grades its own answers.
//!
//! The course's answers and the unusual right ones must pass. Each wrong answer must get the diagnosis in `lab.toml`. Each
//! answer is graded in its own process, as a learner's answer is. Learners run [`crate::learner`] instead.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, ensure};
use libtest_mimic::{Arguments, Failed, Trial};

use crate::exercise::{Lab, Task, Tasks, Wrong};
use crate::grade::find;
use crate::{Finding, Found, Options, learner};

/// With this argument, the executable grades one answer.
const ONE: &str = "grade-one";

/// Compares the diagnoses of a task's wrong answers with those that are expected, and panics if they differ. Arguments: the name of
/// the task, and a line for each wrong answer with its name, the verdict and the diagnosis.
pub type Compare = fn(task: &str, diagnoses: &str);

/// The `main` of a solution's test. `program` knows the course's answers by the names of their tasks and all others as
/// `TASK/NAME`.
pub fn main(lab: &Lab, program: &str, compare: Compare) -> ExitCode {
    if let Some(code) = learner::helper() {
        return code;
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [one, answer, seed] = &args[..]
        && one == ONE
    {
        return grade_one(lab, program, answer, seed);
    }
    let tasks = lab.tasks().expect("the lab's lab.toml");
    libtest_mimic::run(&Arguments::from_args(), trials(&tasks, compare)).exit_code()
}

fn trials(tasks: &Tasks, compare: Compare) -> Vec<Trial> {
    let of_task = |task: &Task| {
        let own = Trial::test(format!("{}::the_solution_passes", task.name), passes(task.name.clone()));
        let right = task.right.iter().map(|right| {
            let answer = format!("{}/{}", task.name, right.name);
            Trial::test(format!("{}::{}_passes_too", task.name, right.name), passes(answer))
        });
        let name = format!("{}::wrong_answers_get_their_diagnoses", task.name);
        let wrong = (!task.wrong.is_empty()).then(|| Trial::test(name, wrong_answers(task.clone(), compare)));
        [own].into_iter().chain(right).chain(wrong).collect::<Vec<_>>()
    };
    tasks.tasks.iter().flat_map(of_task).collect()
}

fn passes(answer: String) -> impl FnOnce() -> Result<(), Failed> + Send + 'static {
    move || {
        let (found, seed) = graded(&answer)?;
        found.map_err(|finding| Failed::from(format!("{answer} with seed {seed}: {finding}\n{finding:#?}")))
    }
}

/// Grades all wrong answers of a task. Their diagnoses are compared together, so that one file has them all.
fn wrong_answers(task: Task, compare: Compare) -> impl FnOnce() -> Result<(), Failed> + Send + 'static {
    move || {
        let findings = task.wrong.iter().map(|wrong| diagnosed(&task.name, wrong));
        let (diagnosed, failed): (Vec<_>, Vec<_>) = findings.partition(Result::is_ok);
        if !failed.is_empty() {
            let reasons: Vec<String> = failed.into_iter().filter_map(Result::err).collect();
            return Err(reasons.join("\n\n").into());
        }
        let named = task.wrong.iter().zip(diagnosed.into_iter().flatten());
        compare(&task.name, &named.map(|(wrong, finding)| format!("{}: {finding}\n", wrong.name)).collect::<String>());
        Ok(())
    }
}

/// The finding on a wrong answer, if it has the verdict and the words that `lab.toml` demands.
fn diagnosed(task: &str, wrong: &Wrong) -> Result<Box<Finding>, String> {
    let answer = format!("{task}/{}", wrong.name);
    let (found, seed) = graded(&answer).map_err(|error| format!("{error:#}"))?;
    let Err(finding) = found else { return Err(format!("{answer} with seed {seed} passed, but it is wrong")) };
    if finding.verdict == wrong.verdict && finding.diagnosis.contains(&wrong.says) {
        return Ok(finding);
    }
    let expected = format!("but it must be {}: … {} …", wrong.verdict.words(), wrong.says);
    Err(format!("{answer} with seed {seed}: {finding}\n{expected}\n{finding:#?}"))
}

/// Grades an answer in another process. Its ranks die with the main thread of that process.
fn graded(answer: &str) -> anyhow::Result<(Found, u64)> {
    let options = Options::seeded(None);
    let this = std::env::current_exe()?;
    let output = Command::new(this).args([ONE, answer, &options.seed.to_string()]).output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "the grader of {answer} ended with {}: {stderr}", output.status);
    let found = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("cannot read the finding of the grader of {answer}: {stderr}"))?;
    Ok((found, options.seed))
}

fn grade_one(lab: &Lab, program: &str, answer: &str, seed: &str) -> ExitCode {
    let options = Options::seeded(seed.parse().ok());
    let task = answer.split('/').next().unwrap_or(answer);
    match find(lab, task, answer, Path::new(program), &options) {
        Ok(found) => {
            println!("{}", serde_json::json!(found));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
