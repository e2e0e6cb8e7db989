//! Checks the course's exercises: whether their files are complete; whether the original tasks compile without a
//! warning and are graded as not started (`--build`); whether the grader judges the course's own answers rightly with
//! many inputs (`--seeds`); and what it prints for them (`lockstep course try`).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use std::{env, fs, thread};

use anyhow::Context;
use lockstep_grading::exercise::{Task, Tasks};
use lockstep_grading::grade::{self, Submission, grade};
use lockstep_grading::{
    GradeResult, Lab, Language, Options, Program, Runner, Verdict, at_seeds, checksums, learner, package,
};

use crate::cargo::{self, Message};
use crate::checkout::program_beside;
use crate::exit::{Code, Refused};
use crate::labs;
use crate::report::{Screen, count, whole_words};

/// Minimum number of wrong answers per lab.
const WRONG: usize = 4;
/// Minimum number of tasks per lab.
const TASKS: usize = 3;
/// How long a task may take, in minutes.
const MINUTES: RangeInclusive<u32> = 5..=30;

/// The faults, one per line; empty if the lab is complete.
pub(crate) fn lacks(root: &Path, lab: &Lab) -> Vec<String> {
    let with_lab = |fault: String| format!("labs/{}: {fault}", lab.name);
    let tasks = match lab.tasks() {
        Ok(tasks) => tasks,
        Err(error) => return vec![with_lab(format!("{error:#}"))],
    };
    let mut faults = out_of_step(root, lab);
    faults.extend(too_few(root, lab, &tasks));
    faults.extend(without_text(root, &tasks));
    faults.extend(without_grading(root, lab, &tasks));
    faults.into_iter().map(with_lab).collect()
}

/// Compares the exercise with the one generated from the solution, and the solution's list of its modules with what
/// is there. A learner's change is not a fault of the course: then the list of checksums is right, and only the file
/// differs from it.
fn out_of_step(root: &Path, lab: &Lab) -> Vec<String> {
    let command = format!("lockstep course skeleton {}", lab.number());
    let mut faults = Vec::new();
    for language in [Language::Rust, Language::Python] {
        let files = match package::files_in(root, lab, language) {
            Ok(files) => files,
            Err(error) => return vec![format!("{error:#}")],
        };
        let folder = lab.learners(root, language);
        let given = checksums::read(&folder);
        let stale = |(path, text): (&std::path::PathBuf, &String)| {
            let now = fs::read_to_string(folder.join(path)).unwrap_or_default();
            let sum = checksums::line(path, text);
            let listed = given.get(&*path.to_string_lossy()).is_some_and(|given| sum.starts_with(given));
            let right = if path.ends_with(checksums::FILE) { now == *text } else { listed };
            let shown = folder.join(path);
            let shown = shown.strip_prefix(lab.folder(root)).or(shown.strip_prefix(root)).unwrap_or(&shown).display();
            (!right).then(|| format!("{shown} is out of date: {command}"))
        };
        faults.extend(files.iter().filter_map(stale));
    }
    let main = lab.tasks_folder(root).join(package::MAIN);
    let stale_main =
        package::solution_main(root, lab).is_ok_and(|text| fs::read_to_string(main).unwrap_or_default() != text);
    let main = stale_main.then(|| format!("tasks/{} is out of date: {command}", package::MAIN));
    faults.extend(main);
    faults
}

fn too_few(root: &Path, lab: &Lab, tasks: &Tasks) -> Vec<String> {
    let (mut faults, mut wrong, mut right) = (Vec::new(), 0, 0);
    for task in &tasks.tasks {
        match lab.answers(root, &task.name, Language::Rust) {
            Ok(answers) => (wrong, right) = (wrong + answers.wrong.len(), right + answers.right.len()),
            Err(error) => faults.push(format!("{error:#}")),
        }
        if lab.own_answer(root, &task.name, Language::Python).is_file() {
            match lab.answers(root, &task.name, Language::Python) {
                Ok(answers) if answers.wrong.len() < WRONG => faults.push(format!(
                    "{} in Python of {}, of {WRONG} at least",
                    count(answers.wrong.len(), "wrong answer"),
                    task.name
                )),
                Ok(_) => {}
                Err(error) => faults.push(format!("{error:#}")),
            }
        }
    }
    if tasks.tasks.len() < TASKS {
        faults.push(format!("{}, of {TASKS} at least", count(tasks.tasks.len(), "task")));
    }
    if wrong < WRONG {
        faults.push(format!("{}, of {WRONG} at least", count(wrong, "wrong answer")));
    }
    if right == 0 {
        faults.push("no unusual right answer".into());
    }
    faults
}

/// Tasks without a section in the chapter, with an empty hint, or too long.
fn without_text(root: &Path, tasks: &Tasks) -> Vec<String> {
    let chapter = root.join("book/src").join(&tasks.chapter);
    let text = fs::read_to_string(&chapter).unwrap_or_default();
    let headings: BTreeSet<&str> = text.lines().map(|line| line.trim_start_matches('#').trim()).collect();
    let section = |task: &Task| {
        (!headings.contains(task.section.as_str()))
            .then(|| format!("{} has no section \"{}\" for {}", tasks.chapter, task.section, task.name))
    };
    let hints = |task: &Task| {
        task.hints.iter().any(|hint| hint.trim().is_empty()).then(|| format!("{} has an empty hint", task.name))
    };
    let minutes = |task: &Task| {
        let (name, minutes, (least, most)) = (&task.name, task.minutes, MINUTES.into_inner());
        (!MINUTES.contains(&minutes)).then(|| format!("{name} takes {minutes} minutes, not {least} to {most}"))
    };
    tasks.tasks.iter().flat_map(|task| [section(task), hints(task), minutes(task)]).flatten().collect()
}

/// Tasks without a function `grade` that grades them.
fn without_grading(root: &Path, lab: &Lab, tasks: &Tasks) -> Vec<String> {
    let files = tasks.tasks.iter().map(|task| lab.grader(root, &task.name));
    let grades = |file: &PathBuf| fs::read_to_string(file).unwrap_or_default().contains("pub(crate) fn grade(");
    let name = |file: &PathBuf| file.strip_prefix(lab.folder(root)).unwrap_or(file).display().to_string();
    files.filter(|file| !grades(file)).map(|file| format!("{} has no function grade", name(&file))).collect()
}

/// The result of the check.
#[derive(Default)]
pub(crate) struct Beginning {
    /// Faults, one per line.
    pub(crate) faults: Vec<String>,
    /// What could not be checked, with the reasons.
    pub(crate) not_verified: Vec<String>,
}

/// Builds the exercises and grades them in their original state. An exercise that a learner has edited is skipped.
pub(crate) fn beginning(root: &Path, labs: &[Lab]) -> anyhow::Result<Beginning> {
    let mut found = Beginning::default();
    let mut given = Vec::new();
    for lab in labs {
        let folder = lab.exercise(root);
        let edited =
            checksums::read(&folder).keys().find(|path| !checksums::untouched(&folder, Path::new(path))).cloned();
        match edited {
            Some(path) => found.not_verified.push(format!("labs/{}/exercise/{path} has been edited", lab.name)),
            None => given.push((lab, folder)),
        }
    }
    let messages = build(root)?;
    for (lab, folder) in given {
        let package = lab.package();
        let of_it = |message: &&Message| {
            message.package_id.as_ref().is_some_and(|id| id.contains(&format!("/labs/{}/exercise", lab.name)))
        };
        let warnings = messages.iter().filter(of_it).filter_map(|message| message.message.as_ref()?.rendered.clone());
        found.faults.extend(warnings.map(|text| format!("labs/{}: the exercise has a warning: {text}", lab.name)));
        let program = messages.iter().filter(of_it).find_map(|message| message.program(&package));
        let program = program.with_context(|| format!("cargo built no program {package}"))?.to_owned();
        found.faults.extend(started(lab, &Submission { program: (&*program).into(), folder })?);
    }
    Ok(found)
}

/// Builds all targets of the workspace, like the test run: with fewer, crates would have other features and be rebuilt.
fn build(root: &Path) -> anyhow::Result<Vec<Message>> {
    let mut command = cargo::command(root, &["test", "--workspace", "--no-run"]);
    let output = command.stderr(Stdio::inherit()).output().context("cannot start cargo: is it on PATH?")?;
    anyhow::ensure!(output.status.success(), "cargo cannot build the workspace; see its output above");
    Ok(cargo::messages(&output.stdout))
}

/// The tasks that seem to have been started.
fn started(lab: &Lab, submission: &Submission) -> anyhow::Result<Vec<String>> {
    let Ok(lab) = &labs::find(lab.name) else {
        return Ok(vec![format!("labs/{}: this command was built before the lab was: cargo build", lab.name)]);
    };
    let (mut faults, options) = (Vec::new(), Options::seeded(None));
    let mut runner = Runner::new(&submission.program, &options);
    for task in lab.tasks()?.tasks {
        let Task { name, .. } = &task;
        let verdict = match grade(lab, &task, submission, &options, &mut runner)?.found {
            Ok(()) => "passed",
            Err(fault) if fault.verdict == Verdict::NotStarted => continue,
            Err(fault) => fault.verdict.words(),
        };
        faults.push(format!(
            "labs/{}: {name} is graded as {verdict} before a learner begins, not as \"not started\"",
            lab.name
        ));
    }
    Ok(faults)
}

/// A wrong answer that hangs is graded at this many seeds: each time costs seconds, and that it hangs follows from what it does.
const SEEDS_OF_HANGS: u64 = 3;

/// What came of one answer, graded at many seeds.
#[derive(Default)]
struct AtSeeds {
    /// How many.
    graded: u64,
    /// Those at which a wrong answer passed, a right one was refused, or the grader failed; and what it said of the first.
    misjudged: Vec<u64>,
    said: Option<String>,
    /// The diagnoses without their numbers; of each, the first seed.
    diagnoses: BTreeMap<String, u64>,
    hangs: bool,
}

/// Grades all answers of these labs, or of this task, wrong and right, with the inputs of the seeds from 1 to `seeds`, and prints what
/// [`try_at_seeds`] says of each. Returns it for those that were misjudged.
///
/// Several run at once, since ranks mostly wait for each other: each in a process of its own, which can tell its orphans from others'.
pub(crate) fn all_at_seeds(
    root: &Path,
    of: &[Lab],
    seeds: u64,
    task: Option<&str>,
    language: Language,
    screen: &Screen,
) -> anyhow::Result<Vec<String>> {
    let begin = Instant::now();
    let this = env::current_exe().context("cannot find this program's own path")?;
    let mut all = Vec::new();
    for lab in of {
        solution(root, lab, language)?;
        let tasks = lab.tasks_in(root, language)?.tasks.into_iter();
        for Task { name, .. } in tasks.filter(|one| task.is_none_or(|task| one.name == task)) {
            all.push((lab.number(), name.clone()));
            let answers = lab.answers(root, &name, language)?;
            all.extend(answers.all().map(|answer| (lab.number(), format!("{name}/{answer}"))));
        }
    }
    let (answers, left, faults) = (all.len(), Mutex::new(all.into_iter()), Mutex::new(Vec::new()));
    let one_by_one = || -> anyhow::Result<()> {
        loop {
            let Some((lab, answer)) = left.lock().unwrap_or_else(PoisonError::into_inner).next() else { return Ok(()) };
            let arguments = ["course", "try", lab, &answer, "--seeds", &seeds.to_string()];
            let mut command = Command::new(&this);
            command
                .args(arguments)
                .args((language == Language::Python).then_some("--python"))
                .current_dir(root)
                .stderr(Stdio::inherit());
            let output = command.output().context("cannot start this program again")?;
            let line = String::from_utf8_lossy(&output.stdout).trim_end().to_owned();
            screen.line(&line);
            if !output.status.success() {
                faults.lock().unwrap_or_else(PoisonError::into_inner).push(format!("labs/{lab}: {answer}: {line}"));
            }
        }
    };
    let at_once = 2 * thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..at_once).map(|_| scope.spawn(one_by_one)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })?;
    screen.line(format_args!("{} in {:.0} s", count(answers, "answer"), begin.elapsed().as_secs_f64()));
    Ok(faults.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Grades these answers, `TASK` or `TASK/NAME`, with the inputs of the seeds from 1 to `seeds`, and prints a line for each: whether it was
/// judged rightly, and its diagnoses if it has several.
pub(crate) fn try_at_seeds(
    root: &Path,
    lab: &Lab,
    answers: &[String],
    language: Language,
    seeds: u64,
) -> anyhow::Result<Code> {
    let (tasks, program) = (lab.tasks_in(root, language)?, solution(root, lab, language)?);
    let screen = Screen::new(false);
    let mut code = Code::Success;
    for answer in answers {
        let task = &task_of(root, lab, &tasks, answer, language)?.name;
        let is_wrong =
            |name: &str| lab.answers(root, task, language).map(|all| all.wrong.iter().any(|wrong| wrong == name));
        let is_right = !answer.split_once('/').map_or(Ok(false), |(_, name)| is_wrong(name))?;
        let begin = Instant::now();
        let found = one_at_seeds(lab, &program, task, answer, is_right, seeds);
        let took = begin.elapsed().as_secs_f64();
        screen.line(format_args!("{} {answer}: {}, {took:.1} s", lab.number(), found.words(is_right)));
        if found.diagnoses.len() > 1 {
            found.diagnoses.iter().for_each(|(text, seed)| screen.line(format_args!("  from seed {seed} on: {text}")));
        }
        if !found.misjudged.is_empty() {
            code = Code::Failure;
        }
    }
    Ok(code)
}

/// The program with the course's answers to a lab in a language.
fn solution(root: &Path, lab: &Lab, language: Language) -> anyhow::Result<Program> {
    match language {
        Language::Rust => Ok((&*program_beside(&lab.solution())?).into()),
        Language::Python => {
            Program::python(root, lab, &lab.tasks_folder(root)).map_err(|why| Refused(why.to_string()).into())
        }
    }
}

/// Gradings at many seeds share processes. What is misjudged so is graded once more alone, and that counts.
fn one_at_seeds(lab: &Lab, program: &Program, task: &str, answer: &str, is_right: bool, seeds: u64) -> AtSeeds {
    let grade = |runner: &mut Runner, options: &Options| grade::find(lab, task, answer, options, runner);
    let alone = |seed| {
        let options = Options::seeded(Some(seed));
        grade(&mut Runner::new(program, &options), &options)
    };
    let mut at = AtSeeds::default();
    let first = SEEDS_OF_HANGS.min(seeds);
    for part in [1..=first, first + 1..=seeds] {
        if at.hangs {
            break;
        }
        for (seed, found) in at_seeds(program, part, grade) {
            let is_misjudged =
                |found: &anyhow::Result<GradeResult>| found.as_ref().map_or(true, |found| found.is_ok() != is_right);
            at.add(seed, is_right, if is_misjudged(&found) { alone(seed) } else { found });
        }
    }
    at
}

impl AtSeeds {
    fn add(&mut self, seed: u64, is_right: bool, found: anyhow::Result<GradeResult>) {
        self.graded += 1;
        let said = match found {
            Ok(Err(finding)) if !is_right => {
                self.hangs |= finding.verdict == Verdict::Hang;
                self.diagnoses.entry(finding.diagnosis.replace(|c: char| c.is_ascii_digit(), "")).or_insert(seed);
                return;
            }
            Ok(Ok(())) if is_right => return,
            Ok(Ok(())) => "passed, although it is wrong".to_owned(),
            Ok(Err(finding)) => format!("was refused, although it is right: {finding}"),
            Err(error) => format!("was not graded: {error:#}"),
        };
        self.misjudged.push(seed);
        self.said.get_or_insert(said);
    }

    fn words(&self, is_right: bool) -> String {
        let (seeds, did) = (count(self.graded as usize, "seed"), if is_right { "passed" } else { "refused" });
        if let Some(said) = &self.said {
            let at: Vec<String> = self.misjudged.iter().map(u64::to_string).collect();
            return format!("MISJUDGED at {} of {seeds} ({}): {said}", at.len(), at.join(" "));
        }
        let several = match self.diagnoses.len() {
            0 | 1 => String::new(),
            diagnoses => format!(" with {diagnoses} diagnoses"),
        };
        format!("{did} at {seeds}{several}")
    }
}

/// Grades these answers of a lab, `TASK` or `TASK/NAME`, or all wrong ones if there are none: prints the full finding of a
/// single one, a table of several.
pub(crate) fn try_out(
    root: &Path,
    lab: &Lab,
    answers: &[String],
    language: Language,
    options: &Options,
) -> anyhow::Result<Code> {
    let (tasks, program) = (lab.tasks_in(root, language)?, solution(root, lab, language)?);
    let all = if answers.is_empty() { wrong(root, lab, &tasks, language)? } else { Vec::new() };
    let answers = if answers.is_empty() { &all } else { answers };
    let mut runner = Runner::new(&program, options);
    let mut grade = |answer: &String| -> anyhow::Result<(Task, GradeResult)> {
        let task = task_of(root, lab, &tasks, answer, language).with_context(|| format!("lab {}", lab.number()))?;
        Ok((task.clone(), grade::find(lab, &task.name, answer, options, &mut runner)?))
    };
    if let [answer] = answers {
        let (task, found) = grade(answer)?;
        Screen::new(false).line(learner::rendered(lab, &tasks, &task, &found, options.seed, language));
        return Ok(Code::Success);
    }
    let screen = Screen::new(false);
    let mut table = screen.style().table(&["answer", "verdict", "diagnosis"]);
    for answer in answers {
        let (_, found) = grade(answer)?;
        let (verdict, diagnosis) =
            found.map_or_else(|fault| (fault.verdict.words(), fault.diagnosis), |()| ("passed", String::new()));
        table.add_row([answer, verdict, &diagnosis]);
    }
    screen.line(whole_words(table, screen.style()));
    screen.line(format!("lab {}, seed {}: {}", lab.number(), options.seed, count(answers.len(), "answer")));
    Ok(Code::Success)
}

fn wrong(root: &Path, lab: &Lab, tasks: &Tasks, language: Language) -> anyhow::Result<Vec<String>> {
    let mut all = Vec::new();
    for Task { name, .. } in &tasks.tasks {
        all.extend(lab.answers(root, name, language)?.wrong.iter().map(|wrong| format!("{name}/{wrong}")));
    }
    Ok(all)
}

fn task_of<'a>(root: &Path, lab: &Lab, tasks: &'a Tasks, answer: &str, language: Language) -> anyhow::Result<&'a Task> {
    let (name, other) = answer.split_once('/').map_or((answer, None), |(name, other)| (name, Some(other)));
    let task = tasks.find(name).map_err(|error| Refused(error.to_string()))?;
    if let Some(other) = other {
        let answers = lab.answers(root, name, language)?;
        if !answers.all().any(|name| name == other) {
            let names = answers.all().collect::<Vec<_>>().join(", ");
            return Err(Refused(format!("{name} has no answer {other}: there are {names}")).into());
        }
    }
    Ok(task)
}
