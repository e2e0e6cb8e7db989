//! Grades one task of an exercise.

use std::fmt::Write as _;
use std::mem;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use lockstep_contract::foreign;

use crate::exercise::{Lab, Task, Tasks};
use crate::{Finding, GradeResult, Language, Options, Program, Runner, Verdict, Workplace, checksums};

/// A learner's program and its sources.
#[derive(Clone, Debug)]
pub struct Submission {
    /// The program that runs the learner's answers.
    pub program: Program,
    /// The folder of the learner's package, or of the lab's tasks in Python.
    pub folder: PathBuf,
}

/// The result of grading one task.
#[derive(Clone, Debug)]
pub struct Graded {
    pub task: Task,
    pub found: GradeResult,
    /// How long the grading took.
    pub took: Duration,
}

/// Grades one task, with a runner of the submission's program. Several tasks can share it.
///
/// Errors: failures of the machine or the course, after which the runner is of no use. A wrong answer is not an error but part of the
/// result.
pub fn grade(
    lab: &Lab,
    task: &Task,
    submission: &Submission,
    options: &Options,
    runner: &mut Runner,
) -> anyhow::Result<Graded> {
    let begin = Instant::now();
    let found = find(lab, &task.name, &task.name, options, runner)?;
    let untouched = || checksums::untouched(&submission.folder, &task.file_in(submission.program.language));
    let found = found.map_err(|finding| if untouched() { Box::new(not_started(*finding)) } else { finding });
    Ok(Graded { task: task.clone(), found, took: begin.elapsed() })
}

/// Grades the answer `answer` of the runner's program as an answer to `task`.
pub fn find(
    lab: &Lab,
    task: &str,
    answer: &str,
    options: &Options,
    runner: &mut Runner,
) -> anyhow::Result<GradeResult> {
    let grading = lab.grading(task).with_context(|| format!("there is no task {task} in lab {}", lab.number()))?;
    runner.turn_to(answer, options);
    match grading(runner) {
        Ok(()) => Ok(Ok(())),
        Err(error) => error.downcast().map(|finding| Err(Box::new(runner.in_words(finding)))),
    }
}

/// Turns the finding into "not started": the file is still as the course wrote it. So it says what the program does, and leaves the cause
/// to the learner.
fn not_started(finding: Finding) -> Finding {
    if finding.verdict == Verdict::NotStarted {
        return finding;
    }
    let does = match &finding.observed {
        Some(_) => "`observed` shows what it does now: find out why".to_owned(),
        None => format!("What it does now: {}", finding.seen.as_ref().unwrap_or(&finding.diagnosis)),
    };
    let diagnosis = format!("the program is still as it was given. {does}");
    Finding { verdict: Verdict::NotStarted, diagnosis, ..finding }
}

/// The width of a line without a terminal and without COLUMNS; and the limits of the width on a terminal.
const WIDTH: usize = 100;
const NARROWEST: usize = 40;
const WIDEST: usize = 140;
/// The column at which texts begin.
const INDENT: usize = 12;

/// The line for a task that passed.
pub(crate) fn passed(tasks: &Tasks, task: &Task) -> String {
    format!("✓ {}: {}", place(tasks, task), task.title)
}

/// The full report on a task that failed.
pub(crate) fn failed(
    lab: &Lab,
    tasks: &Tasks,
    task: &Task,
    finding: &Finding,
    seed: u64,
    language: Language,
) -> String {
    let rank = finding.rank.map_or(String::new(), |rank| format!(" on rank {rank}"));
    let symbol = if finding.verdict == Verdict::NotStarted { '·' } else { '✗' };
    let verdict = finding.verdict.words();
    let text = format!("{symbol} {}: {}: {verdict}{rank}\n\n", place(tasks, task), task.title);
    let [file, read, hint] = places(lab, tasks, task, language);
    let mut lines = finding.lines();
    lines.push(file);
    lines.push(("seed", seed.to_string()));
    lines.push(("replay", format!("lockstep grade {} {}{} --seed {seed}", lab.number(), task.name, language.option())));
    if let Some(recording) = &finding.recording {
        lines.push(("replay", format!("lockstep replay {}: each rank's calls, on a page", foreign::path(recording))));
    }
    lines.extend([read, hint]);
    table(text, lines)
}

/// A task to begin with: its title, and where it is done.
pub fn next(lab: &Lab, tasks: &Tasks, task: &Task, language: Language) -> String {
    let title = format!("next, lab {}, {}: {}\n\n", lab.number(), place(tasks, task), task.title);
    table(title, places(lab, tasks, task, language).to_vec())
}

/// A task to begin with, after one of lab `after`, in one line: its lab, if that is another one, and where to read; in a learner's folder, its file.
pub fn next_line(lab: &Lab, tasks: &Tasks, task: &Task, after: &Lab) -> String {
    let chapter = Workplace::chapter(&tasks.chapter);
    let other = if lab.number() == after.number() { String::new() } else { format!("lab {}, ", lab.number()) };
    if !other.is_empty() && tasks.tasks.first().is_some_and(|first| first.name == task.name) {
        return format!("next, lab {}: read {chapter} up to \"{}\"", lab.number(), task.section);
    }
    if Workplace::here().is_some_and(|here| here.is_folder()) {
        let file = file(lab, task, Language::Python);
        return format!("next, {other}{}: {}", place(tasks, task), foreign::path(&file));
    }
    format!("next, {other}{}: read \"{}\" in {chapter}", place(tasks, task), task.section)
}

/// The task's file, its section, and the command for its hints.
fn places(lab: &Lab, tasks: &Tasks, task: &Task, language: Language) -> [(&'static str, String); 3] {
    [
        ("file", file(lab, task, language).display().to_string()),
        ("read", format!("{}, \"{}\"", Workplace::chapter(&tasks.chapter), task.section)),
        ("hint", format!("lockstep hint {} {}{}", lab.number(), task.name, language.option())),
    ]
}

/// The task's file, from the root of the workplace.
fn file(lab: &Lab, task: &Task, language: Language) -> PathBuf {
    let root = Workplace::here().map_or_else(PathBuf::new, Workplace::into_root);
    let file = lab.learners(&root, language).join(task.file_in(language));
    file.strip_prefix(&root).map(Path::to_owned).unwrap_or(file)
}

/// Adds lines of fields and their texts.
fn table(mut text: String, lines: Vec<(&'static str, String)>) -> String {
    let (mut last, width) = ("", width());
    for (field, words) in lines {
        let field = if field == last { "" } else { field };
        for (row, line) in wrapped(&words, width).into_iter().enumerate() {
            let field = if row == 0 { field } else { "" };
            let line = format!("  {field:<width$}{line}", width = INDENT - 2);
            let _ = writeln!(text, "{}", line.trim_end());
        }
        last = if field.is_empty() { last } else { field };
    }
    text
}

/// `task 2 of 4, average`.
fn place(tasks: &Tasks, task: &Task) -> String {
    let number = tasks.tasks.iter().position(|one| one.name == task.name).map_or(0, |index| index + 1);
    format!("task {number} of {}, {}", tasks.tasks.len(), task.name)
}

/// The width of stdout.
fn width() -> usize {
    let terminal = rustix::termios::tcgetwinsize(std::io::stdout()).ok().map(|size| usize::from(size.ws_col));
    lockstep_contract::columns(terminal, WIDTH, (NARROWEST, WIDEST))
}

/// Breaks the text into its rows, and these at spaces, into lines that are this wide with their indent.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    text.split('\n').flat_map(|row| wrapped_row(row, width)).collect()
}

/// Keeps the spaces with which a row begins.
fn wrapped_row(row: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for (at, word) in row.split(' ').enumerate() {
        if at > 0 && !line.trim().is_empty() && line.len() + 1 + word.len() > width - INDENT {
            lines.push(mem::replace(&mut line, word.to_owned()));
            continue;
        }
        if at > 0 {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain;

    #[test]
    fn an_untouched_program_gets_what_was_seen_without_its_cause() {
        let wrong = Finding { observed: Some("2".into()), ..Finding::new(Verdict::WrongValue, "summed, not averaged") };
        let found = not_started(wrong);
        assert_eq!(found.verdict, Verdict::NotStarted);
        assert!(found.diagnosis.ends_with("find out why"), "{}", found.diagnosis);
        let hang = explain(Finding::new(Verdict::Hang, "no rank moves").into(), |_| Some("each sends first".into()));
        let found = not_started(hang.downcast().unwrap());
        assert!(found.diagnosis.ends_with("What it does now: no rank moves"), "{}", found.diagnosis);
    }

    #[test]
    fn breaks_lines_at_spaces_and_keeps_long_words() {
        let text = format!("{} {} b", "a".repeat(80), "c".repeat(120));
        let lengths: Vec<usize> = wrapped(&text, 100).iter().map(String::len).collect();
        assert_eq!(lengths, [80, 120, 1]);
        assert_eq!(wrapped("", 100), [""]);
        assert_eq!(wrapped("rank  ms\n   0   5", 100), ["rank  ms", "   0   5"]);
        assert_eq!(wrapped("one two three", 20), ["one two", "three"]);
        assert_eq!(wrapped("rows:\none two three\nfour", 20), ["rows:", "one two", "three", "four"]);
    }
}
