//! `lockstep grade --class`: grades the answers of many learners, and writes a report on all.
//!
//! The class's folder has one folder per learner. It holds a checkout, or only the submitted files:
//! `labs/02-spawn-ddp/exercise/src`, `ex-02/src` or `02-spawn-ddp/src`. Only the tasks' files are taken from it; manifests,
//! build scripts and the program around the answers are the course's. They are compiled and run one after the other, with
//! timeouts and limits. The running program can write only to its own private folder, if the kernel has Landlock.
//!
//! Nothing prevents an answer from reading this account's files or using the network: grade untrusted work under a separate
//! account.
//!
//! Answers are compiled in a workspace under `target`, whose packages depend on the checkout's crates. It shares the checkout's target
//! folder, so that libtorch's binding is not compiled again, and holds the learners' answers one after the other. An answer that does
//! not compile is replaced by the skeleton, so that the others can be graded.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, bail};
use lockstep_contract::foreign;
use lockstep_grading::exercise::{Task, Tasks};
use lockstep_grading::grade::{Submission, grade};
use lockstep_grading::runner::{Bounds, writes_are_confined};
use lockstep_grading::{Lab, Options, Runner, package};
use lockstep_paths::temporary_folder;
use lockstep_process::{Group, Outcome, Signals};
use toml::{Table, Value};

use crate::cargo::{Built, CompileError, build_command, built};
use crate::exit::{Code, Interrupted, Refused};
use crate::prove::suite::report;
use crate::report::{Finding, ReportCase, Screen, Target, Verdict, counts};

/// Time limit of a call: in any class, some answers hang.
const CALL_DEADLINE: Duration = Duration::from_secs(15);

/// The work of many learners.
pub(crate) struct Class {
    labs: Vec<Lab>,
    learners: Vec<PathBuf>,
    workspace: ClassWorkspace,
}

impl Class {
    /// The class in `folder`, graded with the course in `root`.
    ///
    /// # Errors
    /// [`Refused`] when the folder holds no learner's work.
    pub(crate) fn open(root: PathBuf, folder: PathBuf, labs: Vec<Lab>) -> anyhow::Result<Self> {
        let refused =
            |error: std::io::Error| Refused(format!("cannot read the class in {}: {error}", foreign::path(&folder)));
        let mut learners = Vec::new();
        for entry in fs::read_dir(&folder).map_err(refused)? {
            let path = entry.map_err(refused)?.path();
            let hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
            if path.is_dir() && !hidden {
                learners.push(path);
            }
        }
        learners.sort();
        if learners.is_empty() {
            return Err(Refused(format!("{} has no learner's folder", foreign::path(&folder))).into());
        }
        Ok(Class { workspace: ClassWorkspace::open(root, &labs)?, labs, learners })
    }

    /// Grades all, prints progress, and writes the reports.
    pub(crate) fn grade(self, options: Options, targets: &[Target]) -> anyhow::Result<Code> {
        let screen = Screen::new(targets.iter().any(Target::is_stdout));
        let bounds = Bounds { memory: 4 << 30, ..options.bounds };
        let options = Options { deadline: CALL_DEADLINE, bounds, confined: true, ..options };
        let (begin, started) = (Instant::now(), SystemTime::now());
        let mut cases = Vec::new();
        for learner in &self.learners {
            let mut handed = self.cases_of(learner, &options)?;
            handed.iter().for_each(|case| screen.line(line(case)));
            cases.append(&mut handed);
        }
        let verdicts: Vec<Verdict> = cases.iter().map(ReportCase::verdict).collect();
        let title = format!("Lockstep grade: a class of {}", self.learners.len());
        let mut report = report(&title, started, begin.elapsed(), cases);
        if !writes_are_confined() {
            let text = "answers could write outside their folders: this kernel has no Landlock (Linux 5.13)";
            report.not_verified.push(text.into());
            screen.line(format!("warning: {text}"));
        }
        screen.line(format!("{} in {:.0} s, seed {}", counts(&verdicts), report.took.as_secs_f64(), options.seed));
        targets.iter().try_for_each(|target| report.write(target))?;
        Ok(if report.verdict() == Verdict::Failed { Code::Failure } else { Code::Success })
    }

    /// A case for each lab that the learner submitted.
    fn cases_of(&self, learner: &Path, options: &Options) -> anyhow::Result<Vec<ReportCase>> {
        let name = learner.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (mut cases, mut unreadable) = (Vec::new(), None);
        for lab in &self.labs {
            match Handed::find(learner, lab) {
                Ok(Some(handed)) => {
                    let text = || format!("cannot grade lab {} of {name}", lab.number());
                    cases.push(self.case(&name, lab, &handed, options).with_context(text)?);
                }
                Ok(None) => {}
                Err(why) => drop(unreadable.get_or_insert(why)),
            }
        }
        if cases.is_empty() {
            let labs: Vec<_> = self.labs.iter().map(|lab| format!("labs/{}/exercise/src", lab.name)).collect();
            let evidence = unreadable.unwrap_or_else(|| format!("found none of {}", labs.join(", ")));
            let finding = Finding { claim: "Answers were handed in".into(), verdict: Verdict::Failed, evidence };
            cases.push(ReportCase {
                name,
                shows: "no answers could be read".into(),
                findings: vec![finding],
                ..ReportCase::default()
            });
        }
        Ok(cases)
    }

    fn case(&self, name: &str, lab: &Lab, handed: &Handed, options: &Options) -> anyhow::Result<ReportCase> {
        let begin = Instant::now();
        let tasks = lab.tasks()?;
        let built = self.workspace.build(lab, &tasks, handed)?;
        let mut findings = Vec::new();
        for task in &tasks.tasks {
            let (verdict, evidence) = match built.refused.get(&task.name) {
                Some(why) => (Verdict::Failed, why.clone()),
                None => graded(lab, task, &built.submission, options)?,
            };
            findings.push(Finding { claim: format!("{}: {}", task.name, task.title), verdict, evidence });
        }
        let done = findings.iter().filter(|finding| finding.verdict == Verdict::Passed).count();
        Ok(ReportCase {
            name: format!("{name}/{}", lab.number()),
            shows: format!("{done} of {} tasks of lab {} are done", findings.len(), lab.number()),
            findings,
            took: begin.elapsed(),
            seed: Some(options.seed),
            replay: Some(format!("lockstep grade {} --seed {}", lab.number(), options.seed)),
            ..ReportCase::default()
        })
    }
}

fn graded(
    lab: &Lab,
    task: &Task,
    submission: &lockstep_grading::grade::Submission,
    options: &Options,
) -> anyhow::Result<(Verdict, String)> {
    let graded = grade(lab, task, submission, options, &mut Runner::new(&submission.program, options))?;
    Ok(match graded.found {
        Ok(()) => (Verdict::Passed, format!("in {:.1} s", graded.took.as_secs_f64())),
        Err(fault) => {
            let lines = fault.lines().into_iter().filter(|(field, _)| *field != "diagnosis");
            let details: String = lines.map(|(field, text)| format!("; {field} {text}")).collect();
            (Verdict::Failed, format!("{fault}{details}"))
        }
    })
}

fn line(case: &ReportCase) -> String {
    let signs: Vec<String> = case
        .findings
        .iter()
        .map(|finding| {
            let name = finding.claim.split(':').next().unwrap_or(&finding.claim);
            format!("{} {name}", finding.verdict.symbol())
        })
        .collect();
    format!("{:24} {}  ({:.1} s)", case.name, signs.join("  "), case.took.as_secs_f64())
}

/// Time limit of cargo for the first answer, with which the course's crates are compiled, and for each other one.
const BUILD_DEADLINES: [Duration; 2] = [Duration::from_secs(900), Duration::from_secs(180)];
/// Memory limit of the compiler, in KiB.
const MEMORY: u64 = 8 << 20;
/// How many bytes of cargo's messages are read at most.
const MESSAGES: u64 = 32 << 20;

pub(crate) struct ClassWorkspace {
    root: PathBuf,
    folder: PathBuf,
    signals: Signals,
    /// The course's crates are compiled.
    has_built: Cell<bool>,
    /// The packages of the labs, by name, as the course provides them.
    given: BTreeMap<&'static str, Files>,
}

/// The files of a package, by their relative paths.
type Files = BTreeMap<PathBuf, String>;

/// A learner's program.
pub(crate) struct BuiltAnswers {
    pub(crate) submission: Submission,
    /// The tasks whose answers were left out, with the reasons.
    pub(crate) refused: BTreeMap<String, String>,
}

impl ClassWorkspace {
    /// Creates the workspace for these labs.
    pub(crate) fn open(root: PathBuf, labs: &[Lab]) -> anyhow::Result<Self> {
        let folder = root.join("target").join("class");
        let signals = Signals::listen().context("cannot listen for signals")?;
        let given =
            labs.iter().map(|lab| Ok((lab.name, package::files(&root, lab)?))).collect::<anyhow::Result<_>>()?;
        let workspace = ClassWorkspace { root, folder, signals, has_built: Cell::new(false), given };
        let text = || format!("cannot set up {}", workspace.folder.display());
        fs::create_dir_all(&workspace.folder).with_context(text)?;
        let manifest =
            fs::read_to_string(workspace.root.join("Cargo.toml")).context("cannot read the checkout's Cargo.toml")?;
        let manifest = workspace_manifest(manifest.parse()?, &workspace.root, labs)?;
        fs::write(workspace.folder.join("Cargo.toml"), manifest.to_string()).with_context(text)?;
        fs::copy(workspace.root.join("Cargo.lock"), workspace.folder.join("Cargo.lock")).with_context(text)?;
        for lab in labs {
            workspace.write_package(lab, &workspace.given[lab.name])?;
        }
        Ok(workspace)
    }

    /// Builds a learner's answers to a lab.
    pub(crate) fn build(&self, lab: &Lab, tasks: &Tasks, handed: &Handed) -> anyhow::Result<BuiltAnswers> {
        let given = &self.given[lab.name];
        let mut files = given.clone();
        let mut refused = BTreeMap::new();
        for task in &tasks.tasks {
            match handed.read(task) {
                Ok(text) => drop(files.insert(task.file(), text)),
                Err(why) => drop(refused.insert(task.name.clone(), why)),
            }
        }
        loop {
            self.write_package(lab, &files)?;
            let errors = match self.cargo(lab)? {
                Built::Program(program) => {
                    if let Some(file) = self.foreign_source(lab, &program)? {
                        let why = format!("an answer reads {}, which is not a part of it", foreign::path(&file));
                        let open: Vec<_> =
                            tasks.tasks.iter().filter(|task| !refused.contains_key(&task.name)).collect();
                        anyhow::ensure!(!open.is_empty(), "the course's own files: {why}");
                        for task in open {
                            refused.insert(task.name.clone(), why.clone());
                            files.insert(task.file(), given[&task.file()].clone());
                        }
                        continue;
                    }
                    let submission = Submission { program, folder: self.folder.join(lab.package()) };
                    return Ok(BuiltAnswers { submission, refused });
                }
                Built::Broken(errors) => errors,
            };
            let broken: BTreeSet<&str> = tasks
                .tasks
                .iter()
                .filter(|task| !refused.contains_key(&task.name))
                .filter(|task| errors.iter().any(|error| is_in(error, &task.file())))
                .map(|task| task.name.as_str())
                .collect();
            // An error elsewhere, such as a missing function, is also the fault of an answer, but it is unknown which.
            let broken =
                if broken.is_empty() { tasks.tasks.iter().map(|task| task.name.as_str()).collect() } else { broken };
            if broken.iter().all(|name| refused.contains_key(*name)) {
                bail!("the course's own files do not compile: {}", errors[0].text);
            }
            for task in tasks.tasks.iter().filter(|task| broken.contains(task.name.as_str())) {
                let error = errors.iter().find(|error| is_in(error, &task.file())).unwrap_or(&errors[0]);
                refused.insert(task.name.clone(), format!("does not compile: {}", error.text.trim()));
                files.insert(task.file(), given[&task.file()].clone());
            }
        }
    }

    /// A file that was compiled into the program, and is neither the course's nor in the package. Cargo lists them next to the program; a
    /// macro can hide from [`reads_files`] what it reads.
    fn foreign_source(&self, lab: &Lab, program: &Path) -> anyhow::Result<Option<PathBuf>> {
        let list = program.with_extension("d");
        let text = fs::read_to_string(&list).with_context(|| format!("cannot read {}", foreign::path(&list)))?;
        let own = [
            self.folder.join(lab.package()),
            self.root.join("crates"),
            lab.folder(&self.root).join("given"),
            self.root.join(".libtorch"),
        ];
        let files = text.split_once(": ").map_or("", |(_, files)| files).replace("\\ ", "\0");
        let mut files = files.split_whitespace().map(|file| PathBuf::from(file.replace('\0', " ")));
        let own = own.map(|folder| folder.canonicalize().unwrap_or(folder));
        Ok(files.find(|file| {
            let real = file.canonicalize().unwrap_or_else(|_| file.clone());
            !own.iter().any(|own| real.starts_with(own))
        }))
    }

    /// Writes the package again, with the checkout's crates and without its test.
    fn write_package(&self, lab: &Lab, files: &Files) -> anyhow::Result<()> {
        let folder = self.folder.join(lab.package());
        let given = lab.folder(&self.root).join("given").display().to_string();
        for (path, text) in files {
            let text = match path.to_str() {
                Some("Cargo.toml") => &without_test(text)?,
                Some("src/main.rs") => &text.replace(package::GIVEN, &given),
                _ => text,
            };
            let path = folder.join(path);
            // An unchanged file keeps its modification time, so that cargo has nothing to do.
            if fs::read_to_string(&path).is_ok_and(|there| there == *text) {
                continue;
            }
            package::write_file(&path, text)?;
        }
        Ok(())
    }

    fn cargo(&self, lab: &Lab) -> anyhow::Result<Built> {
        let cargo = build_command(&self.folder, &lab.package());
        // The shell limits the compiler's memory: this crate has no unsafe code, so it cannot set a child's limits itself.
        let mut bounded = std::process::Command::new("sh");
        bounded.args(["-c", &format!("ulimit -v {MEMORY}; exec \"$@\""), "sh"]).arg(cargo.get_program());
        bounded.args(cargo.get_args()).current_dir(&self.folder).stdin(Stdio::null());
        for (name, value) in cargo.get_envs() {
            match value {
                Some(value) => bounded.env(name, value),
                None => bounded.env_remove(name),
            };
        }
        bounded.env("CARGO_TARGET_DIR", self.root.join("target"));
        let mut messages =
            tempfile::tempfile_in(temporary_folder()).context("cannot make a file for cargo's messages")?;
        bounded.stdout(messages.try_clone()?);
        let group = Group::start(&mut bounded).context("cannot start cargo")?;
        let deadline = BUILD_DEADLINES[usize::from(self.has_built.get())];
        let status = match group.finish(Instant::now() + deadline, &self.signals)? {
            Outcome::Ended(status) => status,
            Outcome::Signalled(signal) => return Err(Interrupted { signal }.into()),
            Outcome::TimedOut => {
                let text = format!("the compiler was stopped after {} s", deadline.as_secs());
                return Ok(Built::Broken(vec![CompileError { file: None, text }]));
            }
        };
        let mut text = Vec::new();
        std::io::Seek::rewind(&mut messages)?;
        messages.take(MESSAGES).read_to_end(&mut text)?;
        self.has_built.set(self.has_built.get() || status.success());
        built(&text, &lab.package(), status.success())
    }
}

/// Returns true if the error is in this file of the package.
fn is_in(error: &CompileError, file: &Path) -> bool {
    error.file.as_ref().is_some_and(|of| Path::new(of).ends_with(file))
}

/// The checkout's workspace with other members: the same versions and profiles, and crates by absolute paths.
fn workspace_manifest(mut manifest: Table, root: &Path, labs: &[Lab]) -> anyhow::Result<Table> {
    let workspace =
        manifest.get_mut("workspace").and_then(Value::as_table_mut).context("Cargo.toml has no workspace")?;
    let members = labs.iter().map(|lab| Value::String(lab.package())).collect();
    workspace.insert("members".into(), Value::Array(members));
    workspace.remove("default-members");
    workspace.remove("exclude");
    let dependencies = workspace.get_mut("dependencies").and_then(Value::as_table_mut);
    for (_, dependency) in dependencies.into_iter().flatten() {
        if let Some(path) = dependency.get_mut("path") {
            let absolute = root.join(path.as_str().unwrap_or_default());
            *path = Value::String(absolute.to_string_lossy().into_owned());
        }
    }
    Ok(manifest)
}

/// A package's manifest without its test and the test's dependencies.
fn without_test(manifest: &str) -> anyhow::Result<String> {
    let mut manifest: Table = manifest.parse().context("an exercise's Cargo.toml")?;
    manifest.remove("test");
    manifest.remove("dev-dependencies");
    Ok(manifest.to_string())
}

/// Maximum length of an answer, in bytes.
const LONGEST: u64 = 1 << 20;

/// The folder with a lab's answers.
#[derive(Debug, PartialEq)]
pub(crate) struct Handed(PathBuf);

impl Handed {
    /// Finds a lab's answers in a learner's folder, if there are any.
    ///
    /// # Errors
    /// A folder that this user may not read, for the report.
    pub(crate) fn find(learner: &Path, lab: &Lab) -> Result<Option<Self>, String> {
        let places =
            [format!("labs/{}/exercise/src", lab.name), format!("{}/src", lab.package()), format!("{}/src", lab.name)];
        for place in places.map(|place| learner.join(place)) {
            match fs::read_dir(&place) {
                Ok(_) => return Ok(Some(Handed(place))),
                Err(error) if [ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&error.kind()) => {}
                Err(error) => return Err(format!("cannot read {}: {error}", foreign::path(&place))),
            }
        }
        Ok(None)
    }

    /// The text of a task's answer.
    ///
    /// # Errors
    /// Why it cannot be read, for the report. Links and devices are not followed.
    pub(crate) fn read(&self, task: &Task) -> Result<String, String> {
        let name = format!("{}.rs", task.name);
        let path = self.0.join(&name);
        let data = fs::symlink_metadata(&path).map_err(|error| format!("cannot read src/{name}: {error}"))?;
        if !data.is_file() {
            return Err(format!("src/{name} is not a regular file"));
        }
        if data.len() > LONGEST {
            return Err(format!("src/{name} has {} bytes, of {LONGEST} that are allowed", data.len()));
        }
        let text = fs::read_to_string(&path).map_err(|error| format!("cannot read src/{name}: {error}"))?;
        match reads_files(&text) {
            Some(how) => Err(format!("src/{name} reads another file with `{how}`: an answer is one file")),
            None => Ok(text),
        }
    }
}

/// What makes the compiler read other files, which may be another learner's, the course's answers, or a pipe without an end.
const READING: [&str; 5] = ["include!", "include_str!", "include_bytes!", "#[path=", "path=\""];

fn reads_files(text: &str) -> Option<&'static str> {
    let dense: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    READING.into_iter().find(|how| dense.contains(how))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_plain_files_of_the_tasks_from_each_layout() {
        let lab = crate::labs::find("02").unwrap();
        let task = &lab.tasks().unwrap().tasks[0];
        for place in ["labs/02-spawn-ddp/exercise/src", "ex-02/src", "02-spawn-ddp/src"] {
            let learner = tempfile::tempdir().unwrap();
            assert_eq!(Handed::find(learner.path(), &lab), Ok(None));
            let source = learner.path().join(place);
            fs::create_dir_all(&source).unwrap();
            let handed = Handed::find(learner.path(), &lab).unwrap().unwrap();
            assert!(handed.read(task).unwrap_err().starts_with("cannot read src/shard.rs"));
            fs::write(source.join("shard.rs"), "answer").unwrap();
            assert_eq!(handed.read(task).unwrap(), "answer");
        }
    }

    #[test]
    fn refuses_links_and_endless_files() {
        let lab = crate::labs::find("02").unwrap();
        let task = &lab.tasks().unwrap().tasks[0];
        let learner = tempfile::tempdir().unwrap();
        let file = learner.path().join("ex-02/src/shard.rs");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &file).unwrap();
        let handed = Handed::find(learner.path(), &lab).unwrap().unwrap();
        assert!(handed.read(task).unwrap_err().contains("not a regular file"));
        fs::remove_file(&file).unwrap();
        fs::write(&file, vec![b' '; LONGEST as usize + 1]).unwrap();
        assert!(handed.read(task).unwrap_err().contains("bytes"));
        for (text, how) in [
            ("#[path = \"../../bbb/src/shard.rs\"]\nmod other;", "#[path="),
            ("#[cfg_attr(all(), path = \"/x.rs\")] mod other;", "path=\""),
            ("const P: &str = include_str ! (\"pipe\");", "include_str!"),
        ] {
            fs::write(&file, text).unwrap();
            assert!(handed.read(task).unwrap_err().contains(&format!("with `{how}`")), "{text}");
        }
    }
}
