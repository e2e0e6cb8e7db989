//! The tests of a lab's solution: the course grades its own answers.
//!
//! The course's answers and the unusual right ones must pass. Each wrong answer must get the diagnosis in `lab.toml`. The answers of one
//! test are graded one after the other in a process of their own, as a learner's answers are, with an own seed each. Learners run
//! [`crate::learner`] instead.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, ensure};
use libtest_mimic::{Arguments, Failed, Trial};

use crate::exercise::{Lab, Task, Tasks, Wrong};
use crate::grade::find;
use crate::{Finding, Found, Options, Runner, learner};

/// With this argument, the executable grades answers: each is followed by its seed.
const ANSWERS: &str = "grade-answers";

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
    if let [name, answers @ ..] = &args[..]
        && name == ANSWERS
    {
        return grade_answers(lab, program, answers);
    }
    let tasks = lab.tasks().expect("the lab's lab.toml");
    libtest_mimic::run(&Arguments::from_args(), trials(&tasks, compare)).exit_code()
}

fn trials(tasks: &Tasks, compare: Compare) -> Vec<Trial> {
    let of_task = |task: &Task| {
        let right = Trial::test(format!("{}::right_answers_pass", task.name), right_answers(task));
        let name = format!("{}::wrong_answers_get_their_diagnoses", task.name);
        let wrong = (!task.wrong.is_empty()).then(|| Trial::test(name, wrong_answers(task.clone(), compare)));
        [right].into_iter().chain(wrong).collect::<Vec<_>>()
    };
    tasks.tasks.iter().flat_map(of_task).collect()
}

/// Grades the course's own answer and the unusual right ones.
fn right_answers(task: &Task) -> impl FnOnce() -> Result<(), Failed> + Send + 'static {
    let unusual = task.right.iter().map(|right| format!("{}/{}", task.name, right.name));
    let answers: Vec<String> = [task.name.clone()].into_iter().chain(unusual).collect();
    move || {
        let failed = |(answer, (found, seed)): (&String, (Found, u64))| {
            Some(format!("{answer} with seed {seed}: {0}\n{0:#?}", found.err()?))
        };
        let failed: Vec<String> = answers.iter().zip(graded(&answers)?).filter_map(failed).collect();
        if failed.is_empty() { Ok(()) } else { Err(failed.join("\n\n").into()) }
    }
}

/// Grades all wrong answers of a task. Their diagnoses are compared together, so that one file has them all.
fn wrong_answers(task: Task, compare: Compare) -> impl FnOnce() -> Result<(), Failed> + Send + 'static {
    move || {
        let answers: Vec<String> = task.wrong.iter().map(|wrong| format!("{}/{}", task.name, wrong.name)).collect();
        let graded = answers.iter().zip(&task.wrong).zip(graded(&answers)?);
        let findings = graded.map(|((answer, wrong), (found, seed))| diagnosed(answer, wrong, found, seed));
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
fn diagnosed(answer: &str, wrong: &Wrong, found: Found, seed: u64) -> Result<Box<Finding>, String> {
    let Err(finding) = found else { return Err(format!("{answer} with seed {seed} passed, but it is wrong")) };
    if finding.verdict == wrong.verdict && finding.diagnosis.contains(&wrong.says) {
        return Ok(finding);
    }
    let expected = format!("but it must be {}: … {} …", wrong.verdict.words(), wrong.says);
    Err(format!("{answer} with seed {seed}: {finding}\n{expected}\n{finding:#?}"))
}

/// Grades answers to one task in another process: what was found, and the seed. Their ranks die with the main thread of that process.
fn graded(answers: &[String]) -> anyhow::Result<Vec<(Found, u64)>> {
    let seeds: Vec<u64> = answers.iter().map(|_| Options::seeded(None).seed).collect();
    let words = answers.iter().zip(&seeds).flat_map(|(answer, seed)| [answer.clone(), seed.to_string()]);
    let output = Command::new(std::env::current_exe()?).arg(ANSWERS).args(words).output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    let found = String::from_utf8_lossy(&output.stdout);
    let found: Vec<Found> = found.lines().map(serde_json::from_str).collect::<Result<_, _>>().context("a finding")?;
    let next = answers.get(found.len()).map_or("all answers", String::as_str);
    ensure!(output.status.success(), "the grader ended with {} at {next}: {stderr}", output.status);
    ensure!(found.len() == answers.len(), "no finding on {next}: {stderr}");
    Ok(found.into_iter().zip(seeds).collect())
}

/// Prints a line for each answer: what was found.
fn grade_answers(lab: &Lab, program: &str, answers: &[String]) -> ExitCode {
    let mut runner = Runner::new(Path::new(program), &Options::seeded(None));
    for answer in answers.chunks_exact(2) {
        let [answer, seed] = answer else { continue };
        let task = answer.split('/').next().unwrap_or(answer);
        match find(lab, task, answer, &Options::seeded(seed.parse().ok()), &mut runner) {
            Ok(_) if !runner.made_copies() => {
                eprintln!("{program} makes no copies of itself, so that each rank loads libtorch again");
                return ExitCode::FAILURE;
            }
            Ok(found) => println!("{}", serde_json::json!(found)),
            Err(error) => {
                eprintln!("{error:#}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
