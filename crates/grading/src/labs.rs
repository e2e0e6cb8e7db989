//! The course's labs, how a user may name one, and the tests of their exercises and solutions.
//!
//! `build.rs` lists each folder of `labs` that contains a `lab.toml`. It compiles in the text of `lab.toml` and the functions in
//! `tasks/TASK/grade.rs`, so the command needs no checkout to know them.

use std::io::Write;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, ensure};
use libtest_mimic::{Arguments, Failed, Trial};
use lockstep_contract::TEST_SEED;

use crate::exercise::Task;
use crate::{GradeResult, Lab, Language, Options, Program, Python, Runner, learner};

include!(concat!(env!("OUT_DIR"), "/labs.rs"));

/// No lab has this name.
#[derive(Clone, Debug, thiserror::Error)]
#[error("there is no lab {name:?}: {}", known(name))]
pub struct NoSuchLab {
    name: String,
}

/// The lab that has a task of this name, or all labs.
fn known(name: &str) -> String {
    let has = |lab: &&Lab| lab.tasks().is_ok_and(|tasks| tasks.find(name).is_ok());
    match LABS.iter().find(has) {
        Some(lab) => format!("it is a task of lab {0}, `{0} {name}`", lab.number()),
        None => format!("there are {}", names().join(", ")),
    }
}

/// The lab of this number, folder or package: `2`, `02`, `02-spawn-ddp`, `lab-02-spawn-ddp`, `ex-02`, `sol-02`.
pub fn find(text: &str) -> Result<Lab, NoSuchLab> {
    LABS.iter().find(|lab| lab.is_called(text)).copied().ok_or_else(|| NoSuchLab { name: text.into() })
}

fn names() -> Vec<&'static str> {
    LABS.iter().map(|lab| lab.name).collect()
}

/// The `main` of an exercise's test: `package` is the exercise's name, `program` its built binary, `folder` its folder.
pub fn grade(package: &str, program: &str, folder: &str) -> ExitCode {
    with(package, |lab| learner::main(lab, program, folder))
}

/// The `main` of a solution's test: `package` is its name, `program` has all answers of the course, `folder` is the package's folder, and
/// `compare` compares the diagnoses of a task's wrong answers with those that are expected.
pub fn try_answers(package: &str, program: &str, folder: &str, compare: Compare) -> ExitCode {
    let root = Path::new(folder).ancestors().nth(3).unwrap_or(Path::new(""));
    with(package, |lab| try_all(lab, root, program, compare))
}

fn with(package: &str, main: impl FnOnce(&Lab) -> ExitCode) -> ExitCode {
    match find(package) {
        Ok(lab) => main(&lab),
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// With these arguments, the executable grades answers with inputs from a seed: `grade-answers LANGUAGE SEED ANSWER…`.
const ANSWERS: &str = "grade-answers";
/// The second argument for answers in Python.
const IN_PYTHON: &str = "python";

/// Compares the diagnoses of a task's wrong answers with those that are expected, and panics if they differ. Arguments: the name of
/// the task, the name of the snapshot, and a line for each wrong answer with its name, the verdict and the diagnosis.
pub type Compare = fn(task: &str, snapshot: &str, diagnoses: &str);

/// The course's answers to a lab's tasks in one language, and where they are.
#[derive(Clone)]
struct Course {
    root: PathBuf,
    language: Language,
}

/// The `main` of a solution's test in the checkout `root`. `program` knows the course's answers by the names of their tasks and all others
/// as `TASK/NAME`; so does the runtime of Python.
fn try_all(lab: &Lab, root: &Path, program: &str, compare: Compare) -> ExitCode {
    if let Some(code) = learner::helper() {
        return code;
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [name, language, seed, answers @ ..] = &args[..]
        && name == ANSWERS
    {
        let program = match language == IN_PYTHON {
            true => Program::python(root, lab, &lab.tasks_folder(root)),
            false => Ok(Path::new(program).into()),
        };
        return or_fail(program.and_then(|program| grade_answers(lab, &program, seed, answers)));
    }
    or_fail(trials(lab, root, compare).map(|trials| libtest_mimic::run(&Arguments::from_args(), trials).exit_code()))
}

fn or_fail(result: anyhow::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        let _ = writeln!(std::io::stderr(), "error: {error:#}");
        ExitCode::FAILURE
    })
}

fn trials(lab: &Lab, root: &Path, compare: Compare) -> anyhow::Result<Vec<Trial>> {
    let mut trials = Vec::new();
    for (language, words) in [(Language::Rust, ""), (Language::Python, "python_")] {
        for Task { name, .. } in lab.tasks_in(root, language)?.tasks {
            let (course, answers) = (Course { root: root.into(), language }, lab.answers(root, &name, language)?);
            let test = format!("{name}::{words}right_answers_pass");
            trials.push(Trial::test(test, course.right_answers(&name, &answers.right)));
            if !answers.wrong.is_empty() {
                let test = format!("{name}::{words}wrong_answers_get_their_diagnoses");
                trials.push(Trial::test(test, course.wrong_answers(name, answers.wrong, compare)));
            }
        }
    }
    Ok(trials)
}

impl Course {
    /// Grades the course's own answer and the unusual right ones.
    fn right_answers(&self, task: &str, unusual: &[String]) -> impl FnOnce() -> Result<(), Failed> + Send + 'static {
        let unusual = unusual.iter().map(|name| format!("{task}/{name}"));
        let answers: Vec<String> = [task.to_owned()].into_iter().chain(unusual).collect();
        let course = self.clone();
        move || {
            let failed = |(answer, found): (&String, GradeResult)| Some(format!("{answer}: {0}\n{0:#?}", found.err()?));
            let failed: Vec<String> = answers.iter().zip(course.graded(&answers)?).filter_map(failed).collect();
            if failed.is_empty() { Ok(()) } else { Err(failed.join("\n\n").into()) }
        }
    }

    /// Grades all wrong answers of a task. Their diagnoses are compared together, so that one file has them all.
    fn wrong_answers(
        &self,
        task: String,
        names: Vec<String>,
        compare: Compare,
    ) -> impl FnOnce() -> Result<(), Failed> + Send + 'static {
        let course = self.clone();
        move || {
            let answers: Vec<String> = names.iter().map(|name| format!("{task}/{name}")).collect();
            let (mut diagnoses, mut findings) = (String::new(), String::new());
            let found = course.graded(&answers)?;
            if found.is_empty() {
                return Ok(());
            }
            for (name, found) in names.iter().zip(found) {
                let Err(finding) = found else {
                    return Err(format!("{task}/{name} passed, but it is wrong").into());
                };
                diagnoses += &format!("{name}: {finding}\n");
                findings += &format!("{name}: {finding:#?}\n");
            }
            let snapshot = match course.language {
                Language::Rust => "expected",
                Language::Python => "expected_python",
            };
            // The snapshot leaves out numbers and inputs, which help to understand a failure.
            catch_unwind(|| compare(&task, snapshot, &diagnoses)).map_err(|_| Failed::from(findings))
        }
    }

    /// Grades answers to one task in another process and returns what was found; nothing where there is no Python with PyTorch, which it
    /// prints. The ranks die with the main thread of that process.
    fn graded(&self, answers: &[String]) -> anyhow::Result<Vec<GradeResult>> {
        if self.language == Language::Python
            && let Err(why) = Python::for_answers()
        {
            let _ = writeln!(std::io::stdout(), "not verified here: answers in Python ({why})");
            return Ok(Vec::new());
        }
        let seed = std::env::var(TEST_SEED).unwrap_or_else(|_| "1".into());
        let language = if self.language == Language::Python { IN_PYTHON } else { "rust" };
        let mut command = Command::new(std::env::current_exe()?);
        let output = command.current_dir(&self.root).args([ANSWERS, language, &seed]).args(answers).output()?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        let found = String::from_utf8_lossy(&output.stdout);
        let found: Vec<GradeResult> =
            found.lines().map(serde_json::from_str).collect::<Result<_, _>>().context("a finding")?;
        let next = answers.get(found.len()).map_or("all answers", String::as_str);
        ensure!(output.status.success(), "the grader ended with {} at {next}: {stderr}", output.status);
        ensure!(found.len() == answers.len(), "no finding on {next}: {stderr}");
        Ok(found)
    }
}

/// Prints a line for each answer: what was found.
fn grade_answers(lab: &Lab, program: &Program, seed: &str, answers: &[String]) -> anyhow::Result<ExitCode> {
    let options = Options::seeded(Some(seed.parse().with_context(|| format!("{TEST_SEED}={seed}: not a number"))?));
    let mut runner = Runner::new(program, &options);
    for answer in answers {
        let task = answer.split('/').next().unwrap_or(answer);
        let found = crate::grade::find(lab, task, answer, &options, &mut runner)?;
        ensure!(
            runner.made_copies(),
            "{} makes no copies of itself, so that each rank loads libtorch again",
            program.path.display()
        );
        writeln!(std::io::stdout(), "{}", serde_json::json!(found))?;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_a_lab_by_number_folder_and_package() {
        for text in ["2", "02", "02-spawn-ddp", "lab-02-spawn-ddp", "ex-02", "sol-02"] {
            assert_eq!(find(text).map(|lab| lab.name).unwrap_or_default(), "02-spawn-ddp", "{text}");
        }
        for text in ["99", "", "2-spawn-ddp", "lab-"] {
            let why = find(text).map(|lab| lab.name).unwrap_err().to_string();
            assert!(why.starts_with(&format!("there is no lab {text:?}: there are 01-")), "{why}");
        }
        assert!(
            find("mean").map(|lab| lab.name).unwrap_err().to_string().ends_with("it is a task of lab 05, `05 mean`")
        );
    }

    #[test]
    fn each_lab_grades_the_tasks_that_it_names() {
        assert!(!LABS.is_empty());
        for lab in LABS {
            let tasks = lab.tasks().unwrap_or_else(|error| panic!("{error:#}")).tasks;
            let named: Vec<&str> = tasks.iter().map(|task| &*task.name).collect();
            let graded: Vec<&str> = lab.gradings.iter().map(|(name, _)| *name).collect();
            assert_eq!(named, graded, "{}", lab.name);
            // A build that knows a lab does not look for new answers in Python.
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("a crate of the checkout");
            for task in named {
                let is_there = lab.own_answer(root, task, Language::Python).is_file();
                let is_compiled = lab.python.iter().any(|(name, _)| *name == task);
                assert_eq!(is_there, is_compiled, "{} {task}: touch the lab's lab.toml", lab.name);
            }
        }
    }
}
