//! `lockstep grade` builds and grades the answers of this checkout, lab by lab, up to the first finding. `lockstep watch` does so after
//! every change of a file, or follows the learner from task to task.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use lockstep_contract::foreign;
use lockstep_grading::grade::{Submission, next};
use lockstep_grading::labs::LABS;
use lockstep_grading::progress::Progress;
use lockstep_grading::{
    Finding, Lab, Language, Options as Grading, Program, Runner, Verdict, checksums, learner, seat,
};
use notify::{Config, EventKind, PollWatcher, RecommendedWatcher, RecursiveMode, Watcher};

use crate::cargo::{Built, CompileError, build};
use crate::exit::{Code, Refused};
use crate::grade_class::Class;
use crate::labs::{find, find_all};
use crate::report::{Screen, Stdout, Target, count};
use crate::route::Route;
use crate::{task, workplace};

/// Grade the exercises: tasks in order, up to the first that is not right
#[derive(Args)]
pub struct Grade {
    /// Labs by number or name, or one lab and tasks of it [default: all labs]
    #[arg(value_name = "LAB")]
    labs: Vec<String>,
    /// Only this task of the lab; may be repeated
    #[arg(long = "task", value_name = "TASK", requires = "labs")]
    tasks: Vec<String>,
    /// Seed of the inputs, as a finding names it
    #[arg(long)]
    seed: Option<u64>,
    /// Grade the answers in Python, in python/tasks
    #[arg(long, conflicts_with = "class")]
    python: bool,
    /// Grade a class instead: a folder with one folder per learner, in Rust or Python, whose answers cannot write outside it
    #[arg(long, value_name = "DIR", conflicts_with = "tasks")]
    class: Option<PathBuf>,
    /// Where the class's report goes: a .csv, .json, .xml (JUnit), .html or .txt file; may be repeated
    #[arg(long = "report", value_name = "FILE", requires = "class")]
    reports: Vec<Target>,
}

impl Grade {
    pub fn exec(mut self) -> anyhow::Result<Code> {
        if self.class.is_none() {
            self.split_tasks();
        }
        let (options, labs) = (lockstep_grading::Options::seeded(self.seed), find_all(&self.labs)?);
        if let Some(folder) = self.class {
            return Class::open(folder, labs)?.grade(options, &self.reports);
        }
        let root = workplace()?.into_root();
        if !self.tasks.is_empty() {
            let [lab] = &labs[..] else {
                return Err(Refused("--task is of one lab: lockstep grade LAB --task TASK".into()).into());
            };
            let tasks = lab.tasks()?;
            self.tasks.iter().try_for_each(|name| task(&tasks, name).map(drop))?;
        }
        let language = Language::of(&root, self.python);
        let labs = in_language(&root, labs, language, self.labs.is_empty())?;
        for lab in &labs {
            if !grade(&root, lab, &self.tasks, language, &options, &mut Stdout)? {
                return Ok(Code::Failure);
            }
        }
        if let Some(last) = labs.last() {
            learner::next(last, &self.tasks, &root, language, &mut Stdout)?;
        }
        Ok(Code::Success)
    }

    /// Words after the first lab that do not name labs become its tasks, as in other commands: `lockstep grade 02 average`.
    fn split_tasks(&mut self) {
        let [lab, others @ ..] = &self.labs[..] else { return };
        let Ok(tasks) = find(lab).and_then(|lab| lab.tasks()) else { return };
        if others.iter().all(|name| tasks.find(name).is_ok() || find(name).is_err()) {
            self.tasks.extend(self.labs.drain(1..));
        }
    }
}

/// Builds and grades a lab's exercise, and prints the progress; returns true if everything is right.
pub(crate) fn grade(
    root: &Path,
    lab: &Lab,
    tasks: &[String],
    language: Language,
    options: &lockstep_grading::Options,
    out: &mut dyn Write,
) -> anyhow::Result<bool> {
    if language == Language::Python {
        let submission = in_python(root, lab)?;
        return learner::run(lab, tasks, &submission, options, out);
    }
    match build(root, &lab.package())? {
        Built::Program(program) => {
            let submission = Submission { program: (&*program).into(), folder: lab.exercise(root) };
            learner::run(lab, tasks, &submission, options, out)
        }
        Built::Broken(errors) => {
            writeln!(out, "{}", errors[0].text)?;
            tell_class(root, lab, tasks, &errors[0]);
            let more = errors.len() - 1;
            let others = if more == 0 { String::new() } else { format!("; {} after it", count(more, "more error")) };
            writeln!(out, "✗ lab {}: the exercise does not compile{others}", lab.number())?;
            Ok(false)
        }
    }
}

/// What a learner in Python hands in.
fn in_python(root: &Path, lab: &Lab) -> anyhow::Result<Submission> {
    let folder = lab.learners(root, Language::Python);
    Ok(Submission { program: Program::python(root, lab, &folder).map_err(|why| Refused(why.to_string()))?, folder })
}

/// The labs that have tasks in a language. An error if the learner named a lab that has none.
fn in_language(root: &Path, labs: Vec<Lab>, language: Language, all: bool) -> anyhow::Result<Vec<Lab>> {
    let mut there = Vec::new();
    for lab in labs {
        if !lab.tasks_in(root, language)?.tasks.is_empty() {
            there.push(lab);
        } else if !all {
            return Err(Refused(format!("lab {} has no tasks in Python: answer them in Rust", lab.number())).into());
        }
    }
    Ok(there)
}

/// Tells the class that the exercise does not compile, at the task that is being done: the one that is asked for, or whose file has the error, or
/// the first one that has not passed.
fn tell_class(root: &Path, lab: &Lab, asked: &[String], error: &CompileError) {
    let Ok(tasks) = lab.tasks() else { return };
    let progress = Progress::read(root).unwrap_or_default();
    let in_file = error.file.as_deref().and_then(|file| Path::new(file).file_stem()?.to_str());
    let named = asked.first().map(String::as_str).or(in_file).and_then(|name| tasks.find(name).ok());
    let open = || tasks.tasks.iter().find(|task| progress.of(lab.number(), &task.name).is_none());
    let Some(task) = named.or_else(open) else { return };
    let words = error.text.lines().next().unwrap_or_default();
    let finding = Finding::new(Verdict::NotCompiled, words);
    seat::tell(&lab.exercise(root), lab.number(), &task.name, Language::Rust, &Err(Box::new(finding)));
}

/// An editor's save is several events: it is over when no event has come for this long.
const QUIET: Duration = Duration::from_millis(150);

/// Grade an exercise whenever one of its files is saved, until Ctrl-C. Without a lab, follow you: grade the task whose file you save, and
/// name the next one when it passes
#[derive(Args)]
pub struct Watch {
    /// Only this lab, by number or name: all its tasks, up to the first that is not right
    lab: Option<String>,
    /// Only this task of the lab
    #[arg(requires = "lab")]
    task: Option<String>,
    /// Name the next task of this route through the course, not of all tasks
    #[arg(long, value_name = "NAME", conflicts_with = "lab")]
    route: Option<String>,
    /// Look for changes at this interval in seconds, for network file systems without change events
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    poll: Option<u64>,
    /// Grade the answers in Python. Without a lab, what you save shows the language
    #[arg(long)]
    python: bool,
}

/// What is graded: a lab, its tasks by name (none: all), and their language.
struct Watched {
    lab: Lab,
    tasks: Vec<String>,
    language: Language,
}

impl Watch {
    pub fn exec(self) -> anyhow::Result<Code> {
        let root = workplace()?.into_root();
        seat::join(&root);
        match &self.lab {
            Some(name) => {
                let lab = find(name)?;
                if let Some(task) = &self.task {
                    self::task(&lab.tasks()?, task)?;
                }
                let language = Language::of(&root, self.python);
                in_language(&root, vec![lab], language, false)?;
                self.keep_to(&root, &Watched { lab, tasks: self.task.clone().into_iter().collect(), language })
            }
            None => self.follow(&root),
        }
    }

    /// Grades this after each change of the lab's files.
    fn keep_to(&self, root: &Path, watched: &Watched) -> anyhow::Result<Code> {
        let folder = edited(root, &watched.lab, watched.language);
        let (_watcher, changes) = self.watch(std::slice::from_ref(&folder))?;
        let mut python = None;
        loop {
            if watched.grade(root, &mut python) {
                learner::next(&watched.lab, &watched.tasks, root, watched.language, &mut Stdout)?;
            }
            let shown = folder.strip_prefix(root).unwrap_or(&folder).display();
            Screen::new(false).line(format_args!("watching {shown}; Ctrl-C ends"));
            changed(&changes)?;
        }
    }

    /// Grades the task whose file was saved, and names the next one when it passes.
    fn follow(&self, root: &Path) -> anyhow::Result<Code> {
        let (_watcher, changes) = self.watch(&folders(root))?;
        let (mut language, mut python) = (Language::of(root, self.python), None);
        let mut tasks = self.tasks(root, language)?;
        let (screen, mut last) = (Screen::new(false), Watched::next(root, &tasks, None, language)?);
        loop {
            match (&last, &self.route) {
                (Some(watched), _) => screen.line(watched.described()?),
                (None, Some(route)) => screen.line(format_args!("all tasks of the route {route} are done")),
                (None, None) => screen.line("all tasks of the course are done"),
            }
            screen.line("watching all exercises; Ctrl-C ends");
            // One that is begun is graded at once; then, as long as it is not right, whatever is saved.
            let mut saved: Option<Watched> = last.filter(|watched| watched.is_begun(root));
            last = loop {
                if let Some(watched) = &saved
                    && watched.grade(root, &mut python)
                {
                    if watched.language != language {
                        language = watched.language;
                        tasks = self.tasks(root, language)?;
                    }
                    break Watched::next(root, &tasks, Some(watched), language)?;
                }
                saved = loop {
                    let files = changed(&changes)?;
                    // Editors keep files of their own next to the task's.
                    if let Some(found) = files.iter().find_map(|file| Watched::of(root, file)) {
                        break Some(found);
                    }
                };
            };
        }
    }

    /// The tasks to do, in order: the route's, or those of all exercises that exist here.
    fn tasks(&self, root: &Path, language: Language) -> anyhow::Result<Vec<(Lab, String)>> {
        if let Some(route) = &self.route {
            let plan = Route::find(route)?.plan()?;
            let all = plan.into_iter().map(|planned| (planned.lab, planned.task.name));
            return Ok(all.filter(|(lab, task)| lab.has(root, task, language)).collect());
        }
        let mut all = Vec::new();
        for lab in there(root, language) {
            all.extend(lab.tasks_in(root, language)?.tasks.into_iter().map(|task| (lab, task.name)));
        }
        Ok(all)
    }

    /// Reports the files that change in these folders, for as long as the watcher lives.
    fn watch(&self, folders: &[PathBuf]) -> anyhow::Result<(Box<dyn Watcher>, Receiver<PathBuf>)> {
        let (sender, changes) = channel();
        let tell = move |event: notify::Result<notify::Event>| {
            if let Ok(event) = event
                && !matches!(event.kind, EventKind::Access(_))
            {
                // At the end the receiver is gone.
                event.paths.into_iter().for_each(|path| drop(sender.send(path)));
            }
        };
        let mut watcher: Box<dyn Watcher> = match self.poll {
            Some(seconds) => {
                // Compares contents: modification times are unreliable where polling is needed.
                let config =
                    Config::default().with_poll_interval(Duration::from_secs(seconds)).with_compare_contents(true);
                Box::new(PollWatcher::new(tell, config)?)
            }
            None => Box::new(RecommendedWatcher::new(tell, Config::default())?),
        };
        for folder in folders {
            watcher.watch(folder, RecursiveMode::NonRecursive).with_context(|| {
                format!("cannot watch {} (on a network file system, try --poll 2)", foreign::path(folder))
            })?;
        }
        Ok((watcher, changes))
    }
}

/// The languages in which a learner may work.
const LANGUAGES: [Language; 2] = [Language::Rust, Language::Python];

/// The folder with the files that a learner edits in a lab.
fn edited(root: &Path, lab: &Lab, language: Language) -> PathBuf {
    let folder = lab.learners(root, language);
    if language == Language::Rust { folder.join("src") } else { folder }
}

/// The labs whose exercises are here.
fn there(root: &Path, language: Language) -> impl Iterator<Item = Lab> {
    LABS.iter().copied().filter(move |lab| edited(root, lab, language).is_dir())
}

/// All folders with files that a learner edits.
fn folders(root: &Path) -> Vec<PathBuf> {
    let of = |language| there(root, language).map(move |lab| edited(root, &lab, language));
    LANGUAGES.into_iter().flat_map(of).collect()
}

/// Waits for a save to be over; returns the files of its events, the last one first.
fn changed(changes: &Receiver<PathBuf>) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = vec![changes.recv().context("the watcher for changes has ended")?];
    loop {
        match changes.recv_timeout(QUIET) {
            Ok(file) => files.push(file),
            Err(RecvTimeoutError::Timeout) => break,
            Err(RecvTimeoutError::Disconnected) => bail!("the watcher for changes has ended"),
        }
    }
    files.reverse();
    Ok(files)
}

/// A lab's answers in Python, with the process that is copied for each rank.
struct InPython {
    lab: &'static str,
    submission: Submission,
    runner: Runner,
}

impl Watched {
    /// The task that is done in this file.
    fn of(root: &Path, file: &Path) -> Option<Self> {
        let language =
            LANGUAGES.into_iter().find(|language| file.extension().is_some_and(|end| end == language.extension()))?;
        let lab = *LABS.iter().find(|lab| file.parent() == Some(&*edited(root, lab, language)))?;
        let name = file.file_stem()?.to_str()?;
        let tasks = lab.tasks().ok()?;
        tasks.find(name).is_ok().then(|| Watched { lab, tasks: vec![name.into()], language })
    }

    /// The first of these tasks that has not passed: after this one, else of all.
    fn next(
        root: &Path,
        tasks: &[(Lab, String)],
        after: Option<&Watched>,
        language: Language,
    ) -> anyhow::Result<Option<Self>> {
        let progress = Progress::read(root)?;
        let after = after.and_then(|after| Some((after.lab.number(), &**after.tasks.first()?)));
        let open = progress.next(tasks, after);
        Ok(open.map(|(lab, task)| Watched { lab: *lab, tasks: vec![task.clone()], language }))
    }

    /// Where the task is done.
    fn described(&self) -> anyhow::Result<String> {
        let tasks = self.lab.tasks()?;
        let all = self.tasks.iter().map(|name| Ok(next(&self.lab, &tasks, tasks.find(name)?, self.language)));
        all.collect()
    }

    fn is_begun(&self, root: &Path) -> bool {
        let Ok(tasks) = self.lab.tasks() else { return false };
        self.tasks
            .iter()
            .filter_map(|name| tasks.find(name).ok())
            .any(|task| !checksums::untouched(&self.lab.learners(root, self.language), &task.file_in(self.language)))
    }

    /// Builds and grades; returns true if everything is right. In Python it begins with the process of the last grading, which has imported
    /// PyTorch.
    fn grade(&self, root: &Path, python: &mut Option<InPython>) -> bool {
        let graded = match self.language {
            Language::Rust => grade(root, &self.lab, &self.tasks, self.language, &Grading::seeded(None), &mut Stdout),
            Language::Python => self.grade_in_python(root, python),
        };
        graded.unwrap_or_else(|error| {
            *python = None;
            Screen::new(true).line(format_args!("error: {error:#}"));
            false
        })
    }

    fn grade_in_python(&self, root: &Path, python: &mut Option<InPython>) -> anyhow::Result<bool> {
        let options = Grading::seeded(None);
        if python.as_ref().is_none_or(|last| last.lab != self.lab.name) {
            *python = None; // ends the process of the other lab
            let submission = in_python(root, &self.lab)?;
            let runner = Runner::new(&submission.program, &options);
            *python = Some(InPython { lab: self.lab.name, submission, runner });
        }
        let Some(InPython { submission, runner, .. }) = python else { bail!("there is no process to copy") };
        learner::run_with(runner, &self.lab, &self.tasks, submission, &options, &mut Stdout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_editor_keeps_next_to_a_tasks_file_is_not_graded() {
        let (root, lab) = (Path::new("checkout"), crate::labs::find("2").unwrap());
        let src = lab.exercise(root).join("src");
        assert!(Watched::of(root, &src.join("shard.rs")).is_some());
        assert!(Watched::of(root, &lab.learners(root, Language::Python).join("shard.py")).is_some());
        for other in ["shard.rs~", ".shard.rs.swp", "main.rs", "none.rs"] {
            assert!(Watched::of(root, &src.join(other)).is_none(), "{other}");
        }
    }
}
