//! `lockstep grade --class`: grades the answers of many learners, and writes a report on all.
//!
//! The class's folder has one folder per learner. It holds a checkout, a folder of `lockstep init`, or only the submitted files:
//! `labs/02-spawn-ddp/exercise/src`, `ex-02/src` or `02-spawn-ddp/src` in Rust; `python/tasks/02_spawn_ddp`, `tasks/02_spawn_ddp` or
//! `02_spawn_ddp` in Python. Only the tasks' files are taken from it; manifests, build scripts and the program around the answers are the
//! course's. They are compiled and run one after the other, with timeouts and limits. The running program can write only to its own private
//! folder, if the kernel has Landlock.
//!
//! Nothing prevents an answer from using the network, or one in Rust from reading this account's files: grade untrusted work under a
//! separate account. An answer in Python could run what it reads, another's answer or the course's. So it can read its Python, the system and what
//! it is given, and nothing else.
//!
//! Answers in Rust are compiled in `target/class`, a workspace that is the checkout's by links, with the learners' packages in place of the exercises.
//! To cargo its crates are those of the checkout, so what is compiled there is not compiled again. It holds the learners' answers one after
//! the other. An answer that does not compile is replaced by the skeleton, so that the others can be graded.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, bail};
use lockstep_contract::foreign;
use lockstep_grading::exercise::{Task, Tasks};
use lockstep_grading::grade::{Submission, grade};
use lockstep_grading::runner::{Bounds, writes_are_confined};
use lockstep_grading::{Lab, Language, Options, Program, Python, Runner, Verdict as Graded, package};
use lockstep_paths::temporary_folder;
use lockstep_process::{Group, Outcome, Signals};
use tempfile::TempDir;
use toml::{Table, Value};
use tree_sitter::Parser;

use crate::cargo::{
    Built, CompileError, build_command, built, grading_folder, output_folder, plain_command, share_compiled,
    telling_what_takes_long,
};
use crate::checkout::checkout;
use crate::class_report::{self, TaskOutcome};
use crate::exit::{Code, Interrupted, Refused};
use crate::report::{Finding, Report, ReportCase, Screen, Target, Verdict, count, counts};

/// Time limit of a call: in any class, some answers hang.
const CALL_DEADLINE: Duration = Duration::from_secs(15);

/// The work of many learners.
pub(crate) struct Class {
    labs: Vec<Lab>,
    learners: Vec<PathBuf>,
    /// None if nobody has handed in answers in Rust.
    workspace: Option<ClassWorkspace>,
    /// None if nobody has handed in answers in Python.
    python: Option<InPython>,
}

impl Class {
    /// The class in `folder`, graded with the course in the checkout; answers in Python need none.
    pub(crate) fn open(folder: PathBuf, labs: Vec<Lab>) -> anyhow::Result<Self> {
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
        let some = |language| {
            let handed = |of: &PathBuf| labs.iter().any(|lab| matches!(Handed::find(of, lab, language), Ok(Some(_))));
            learners.iter().any(handed)
        };
        let python = some(Language::Python).then(|| InPython::open(&labs)).transpose()?;
        let workspace = match some(Language::Rust) {
            true => Some(ClassWorkspace::open(checkout()?, &labs)?),
            false => None,
        };
        Ok(Class { workspace, python, labs, learners })
    }

    /// Grades all, prints progress, and writes the reports.
    pub(crate) fn grade(self, options: Options, targets: &[Target]) -> anyhow::Result<Code> {
        let screen = Screen::new(targets.iter().any(Target::is_stdout));
        let bounds = Bounds { memory: 4 << 30, ..options.bounds };
        let options = Options { deadline: CALL_DEADLINE, bounds, confined: true, ..options };
        let (begin, started) = (Instant::now(), SystemTime::now());
        let (mut cases, mut outcomes) = (Vec::new(), Vec::new());
        let learners = count(self.learners.len(), "learner");
        if let Some(workspace) = &self.workspace {
            let labs = self.labs_with(Handed::is_rust);
            let first = workspace.is_compiled_first(&labs);
            screen.line(format!("grading {learners}, one after the other; {first}"));
            labs.iter().try_for_each(|lab| workspace.build_given(lab))?;
        } else {
            screen.line(format!("grading {learners}, one after the other"));
        }
        for learner in &self.learners {
            self.add_cases_of(learner, &options, &mut |case, of_case| {
                screen.line(line(&case));
                cases.push(case);
                outcomes.extend(of_case);
            })?;
        }
        let verdicts: Vec<Verdict> = cases.iter().map(ReportCase::verdict).collect();
        let title = format!("Lockstep grade: a class of {}", self.learners.len());
        let mut report = Report::here(&title, started, begin.elapsed(), cases);
        report.tables = class_report::tables(
            &tasks_of(&self.labs_with(|_| true))?,
            &self.learners.iter().map(|of| learner_name(of)).collect::<Vec<_>>(),
            &outcomes,
        );
        if !writes_are_confined() {
            let text = "answers could write outside their folders, and in Python read others': this kernel has no Landlock (Linux 5.13)";
            report.not_verified.push(text.into());
            screen.line(format!("warning: {text}"));
        }
        screen.line(format!("{} in {:.0} s, seed {}", counts(&verdicts), report.took.as_secs_f64(), options.seed));
        targets.iter().try_for_each(|target| report.write(target))?;
        let is_open = [Verdict::Failed, Verdict::Open].contains(&report.verdict());
        Ok(if is_open { Code::Failure } else { Code::Success })
    }

    /// The labs to which somebody has handed in such answers.
    fn labs_with(&self, is_such: fn(&Handed) -> bool) -> Vec<Lab> {
        let has_such = |of: &PathBuf, lab: &Lab| matches!(self.handed(of, lab), Ok(all) if all.iter().any(is_such));
        let somebody_has = |lab: &&Lab| self.learners.iter().any(|of| has_such(of, lab));
        self.labs.iter().filter(somebody_has).copied().collect()
    }

    /// Adds a case for each lab that the learner submitted, with the outcome of each task, and one for what could not be read.
    fn add_cases_of(
        &self,
        learner: &Path,
        options: &Options,
        add: &mut dyn FnMut(ReportCase, Vec<TaskOutcome>),
    ) -> anyhow::Result<()> {
        let name = learner_name(learner);
        let (mut unreadable, mut is_empty) = (None, true);
        for lab in &self.labs {
            let all = self.handed(learner, lab).unwrap_or_else(|why| {
                unreadable.get_or_insert(why);
                Vec::new()
            });
            for handed in &all {
                // Names are unique in a report.
                let only = all.len() == 1;
                let case_name = format!("{name}/{}{}", lab.number(), if only { "" } else { handed.suffix() });
                let text = || format!("cannot grade lab {} of {name}", lab.number());
                let case = self.case(&name, case_name.clone(), lab, handed, options).with_context(text);
                is_empty = false;
                let (case, outcomes) = case.or_else(|error| {
                    let (verdict, evidence, _) = not_graded(error)?;
                    let finding = Finding { claim: "Answers were graded".into(), verdict, evidence };
                    anyhow::Ok((unread(case_name, finding), Vec::new()))
                })?;
                add(case, outcomes);
            }
        }
        if is_empty || unreadable.is_some() {
            let labs: Vec<_> = self.labs.iter().map(|lab| format!("labs/{}/exercise/src", lab.name)).collect();
            let nothing =
                || format!("found none of {}, nor tasks in Python such as tasks/02_spawn_ddp", labs.join(", "));
            let evidence = unreadable.unwrap_or_else(nothing);
            let finding = Finding { claim: "Answers were handed in".into(), verdict: Verdict::Failed, evidence };
            add(unread(name, finding), Vec::new());
        }
        Ok(())
    }

    /// A lab's answers of a learner. Whoever hands in a checkout has files in both languages: those count that are not as they were given, and if all
    /// are, those in Rust.
    fn handed(&self, learner: &Path, lab: &Lab) -> Result<Vec<Handed>, String> {
        let mut all = Vec::new();
        for language in [Language::Rust, Language::Python] {
            all.extend(Handed::find(learner, lab, language)?);
        }
        if all.len() == 2 {
            let (begun, given): (Vec<_>, Vec<_>) = all.into_iter().partition(|handed| {
                let given = match handed.language {
                    Language::Rust => self.workspace.as_ref().map(|workspace| &workspace.given),
                    Language::Python => self.python.as_ref().map(|python| &python.given),
                };
                given.is_none_or(|given| handed.is_begun(lab, &given[lab.name]))
            });
            all = if begun.is_empty() { given.into_iter().take(1).collect() } else { begun };
        }
        Ok(all)
    }

    fn case(
        &self,
        learner: &str,
        case_name: String,
        lab: &Lab,
        handed: &Handed,
        options: &Options,
    ) -> anyhow::Result<(ReportCase, Vec<TaskOutcome>)> {
        let begin = Instant::now();
        let (tasks, built) = match (handed.language, &self.workspace, &self.python) {
            (Language::Rust, Some(workspace), _) => {
                let tasks = lab.tasks()?;
                let built = workspace.build(lab, &tasks, handed)?;
                (tasks, built)
            }
            (Language::Python, _, Some(python)) => {
                let tasks = lab.tasks_in(&python.root, Language::Python)?;
                let built = python.collect(lab, &tasks, handed)?;
                (tasks, built)
            }
            _ => bail!("these answers came while the class was being graded"),
        };
        let mut runner = Runner::new(&built.submission.program, options);
        let (mut findings, mut outcomes) = (Vec::new(), Vec::new());
        for task in &tasks.tasks {
            let (verdict, evidence, diagnosis) = match built.left_out.get(&task.name) {
                Some(Some(why)) => (Verdict::Failed, why.clone(), Some(why.clone())),
                Some(None) => (Verdict::Open, "not handed in".into(), None),
                None => graded(lab, task, &built.submission, options, &mut runner).or_else(|error| {
                    runner = Runner::new(&built.submission.program, options);
                    not_graded(error)
                })?,
            };
            outcomes.push(TaskOutcome {
                learner: learner.into(),
                task: class_report::task_name(lab, &task.name),
                verdict,
                language: Some(built.submission.program.language),
                diagnosis,
            });
            findings.push(Finding { claim: format!("{}: {}", task.name, task.title), verdict, evidence });
        }
        let done = findings.iter().filter(|finding| finding.verdict == Verdict::Passed).count();
        let (number, seed) = (lab.number(), options.seed);
        let language = if handed.is_rust() { "" } else { ", in Python" };
        let case = ReportCase {
            name: case_name,
            shows: format!("{done} of {} tasks of lab {number} are done{language}", findings.len()),
            findings,
            took: begin.elapsed(),
            seed: Some(seed),
            replay: Some(format!("lockstep grade {number}{} --seed {seed}", handed.language.option())),
            ..ReportCase::default()
        };
        Ok((case, outcomes))
    }
}

/// The name of the learner whose folder this is.
fn learner_name(folder: &Path) -> String {
    foreign::one_line(&folder.file_name().unwrap_or_default().to_string_lossy())
}

/// The tasks of these labs, as the report's tables name them.
fn tasks_of(labs: &[Lab]) -> anyhow::Result<Vec<String>> {
    let mut all = Vec::new();
    for lab in labs {
        all.extend(lab.tasks()?.tasks.iter().map(|task| class_report::task_name(lab, &task.name)));
    }
    Ok(all)
}

/// The folder, among the learners', in which graders make theirs.
const GIVEN: &str = "given";

/// Answers in Python: what they are graded with.
struct InPython {
    /// The checkout, if there is one; otherwise what the command has brought is used.
    root: PathBuf,
    /// Has a folder for what graders give answers to read and write, and one for each learner's answers.
    home: TempDir,
    /// The learners' files of the labs, by name, as the course provides them.
    given: BTreeMap<&'static str, Files>,
    /// Python's own.
    folders: Vec<PathBuf>,
}

impl InPython {
    fn open(labs: &[Lab]) -> anyhow::Result<Self> {
        let folders = Python::for_answers().and_then(|python| python.folders());
        let folders = folders.map_err(|why| Refused(format!("the class has answers in Python: {why}")))?;
        let root = checkout().unwrap_or_default();
        let files = |lab: &Lab| Ok((lab.name, package::files_in(&root, lab, Language::Python)?));
        let given = labs.iter().map(files).collect::<anyhow::Result<_>>()?;
        let home = tempfile::Builder::new().prefix("lockstep-class-").tempdir_in(temporary_folder());
        let home = home.context("cannot make a folder for answers in Python")?;
        let made = home.path().join(GIVEN);
        fs::create_dir(&made)?;
        let chosen = tempfile::env::override_temp_dir(&made);
        anyhow::ensure!(chosen.is_ok(), "the folder for temporary files has been chosen before");
        Ok(InPython { root, home, given, folders })
    }

    /// Puts a learner's answers to a lab into a folder of their own.
    fn collect(&self, lab: &Lab, tasks: &Tasks, handed: &Handed) -> anyhow::Result<BuiltAnswers> {
        let own = tempfile::Builder::new().prefix("answers-").tempdir_in(self.home.path())?;
        let folder = own.path().join(lab.python_folder());
        let (files, left_out) = handed.collect(tasks, &self.given[lab.name]);
        files.iter().try_for_each(|(path, text)| package::write_file(&folder.join(path), text))?;
        let given = self.home.path().join(GIVEN);
        let program = Program::python_alone(&self.root, lab, &folder, &given, &self.folders)?;
        Ok(BuiltAnswers { submission: Submission { program, folder }, left_out, _own: Some(own) })
    }
}

/// The case of a learner none of whose answers was graded.
fn unread(name: String, finding: Finding) -> ReportCase {
    let shows = "no answers could be graded".into();
    ReportCase { name, shows, findings: vec![finding], ..ReportCase::default() }
}

/// What fails on the machine may be an answer's doing, and is no reason to lose what all others have.
fn not_graded(error: anyhow::Error) -> anyhow::Result<(Verdict, String, Option<String>)> {
    anyhow::ensure!(!error.is::<Interrupted>(), error);
    Ok((Verdict::NotVerified, format!("could not be graded: {error:#}"), None))
}

/// The verdict, its evidence, and of a wrong answer what is wrong.
fn graded(
    lab: &Lab,
    task: &Task,
    submission: &Submission,
    options: &Options,
    runner: &mut Runner,
) -> anyhow::Result<(Verdict, String, Option<String>)> {
    let graded = grade(lab, task, submission, options, runner)?;
    Ok(match graded.found {
        Ok(()) => (Verdict::Passed, format!("in {:.1} s", graded.took.as_secs_f64()), None),
        Err(fault) if fault.verdict == Graded::NotStarted => (Verdict::Open, fault.verdict.words().into(), None),
        Err(fault) => {
            let lines = fault.lines().into_iter().filter(|(field, _)| *field != "diagnosis");
            let details: String = lines.map(|(field, text)| format!("; {field} {text}")).collect();
            (Verdict::Failed, format!("{fault}{details}"), Some(fault.diagnosis.clone()))
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

/// Time limit of cargo for the course's crates, and for each learner's answers.
const BUILD_DEADLINES: [Duration; 2] = [Duration::from_secs(900), Duration::from_secs(180)];
/// Memory limit of the compiler, in KiB.
const MEMORY: u64 = 8 << 20;
/// How many bytes of cargo's messages, or of its stderr, are read at most.
const MESSAGES: u64 = 32 << 20;

pub(crate) struct ClassWorkspace {
    root: PathBuf,
    folder: PathBuf,
    signals: Signals,
    /// For each lab whose exercise is compiled as the course provides it, the files that the compiler has read.
    sources: RefCell<BTreeMap<&'static str, BTreeSet<PathBuf>>>,
    /// The packages of the labs, by name, as the course provides them.
    given: BTreeMap<&'static str, Files>,
}

/// The files of a package, by their relative paths.
type Files = BTreeMap<PathBuf, String>;

/// The tasks whose answers are left out, by name, with what is wrong with them; nothing for one that was not handed in.
type LeftOut = BTreeMap<String, Option<String>>;

/// A learner's program.
pub(crate) struct BuiltAnswers {
    pub(crate) submission: Submission,
    pub(crate) left_out: LeftOut,
    /// The folder that is only for them.
    _own: Option<TempDir>,
}

impl ClassWorkspace {
    /// Creates the workspace for these labs.
    pub(crate) fn open(root: PathBuf, labs: &[Lab]) -> anyhow::Result<Self> {
        let folder = grading_folder(&root, "class");
        let signals = Signals::listen().context("cannot listen for signals")?;
        let given =
            labs.iter().map(|lab| Ok((lab.name, package::files(&root, lab)?))).collect::<anyhow::Result<_>>()?;
        let workspace = ClassWorkspace { root, folder, signals, sources: RefCell::default(), given };
        workspace.set_up(labs).with_context(|| format!("cannot set up {}", workspace.folder.display()))?;
        Ok(workspace)
    }

    fn set_up(&self, labs: &[Lab]) -> anyhow::Result<()> {
        let packages = self.folder.join(PACKAGES);
        match fs::remove_dir_all(&packages) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            _ => fs::create_dir_all(&packages)?,
        }
        let real = self.root.canonicalize()?;
        for name in LINKED.into_iter().filter(|name| real.join(name).is_dir()) {
            replace_link(&real.join(name), &self.folder.join(name))?;
        }
        let manifest = fs::read_to_string(self.root.join("Cargo.toml")).context("the checkout's Cargo.toml")?;
        fs::write(self.folder.join("Cargo.toml"), workspace_manifest(manifest.parse()?)?.to_string())?;
        fs::copy(self.root.join("Cargo.lock"), self.folder.join("Cargo.lock")).context("the checkout's Cargo.lock")?;
        labs.iter().try_for_each(|lab| self.write_package(lab, &self.given[lab.name]))?;
        share_compiled(&self.root, &output_folder(&self.root), &self.folder);
        Ok(())
    }

    /// The folder of a lab's package.
    fn package(&self, lab: &Lab) -> PathBuf {
        self.folder.join(PACKAGES).join(lab.package())
    }

    /// What is compiled before the first answer is graded, in words.
    pub(crate) fn is_compiled_first(&self, labs: &[Lab]) -> String {
        let mut needed = BTreeSet::new();
        for lab in labs {
            let words = ["tree", "--package", &lab.package(), "--prefix", "none", "--edges", "normal,build"];
            let Ok(tree) = plain_command(&self.folder, &words).stderr(Stdio::null()).output() else { break };
            let crates = String::from_utf8_lossy(&tree.stdout).into_owned();
            needed.extend(crates.lines().filter_map(|line| Some(line.split_once(" v")?.0.to_owned())));
        }
        labs.iter().for_each(|lab| _ = needed.remove(&lab.package()));
        let units: BTreeSet<String> = fs::read_dir(self.folder.join("debug/.fingerprint"))
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|unit| Some(unit.file_name().to_str()?.rsplit_once('-')?.0.to_owned()))
            .collect();
        let missing: Vec<&String> = needed.iter().filter(|name| !units.contains(*name)).collect();
        // What is there may have been compiled otherwise, such as by another compiler.
        if missing.is_empty() {
            return "first what is not compiled of the course's crates".into();
        }
        let seconds: u64 = missing.iter().map(|name| if WITH_CPP.contains(&&***name) { 60 } else { 2 }).sum();
        let minutes = seconds.div_ceil(60);
        format!(
            "compiling {} of the course's {} first, once: about {}",
            missing.len(),
            count(needed.len(), "crate"),
            count(minutes as usize, "minute"),
        )
    }

    /// Compiles the course's crates with the exercise as it is given, so that what fails afterwards is an answer's fault.
    fn build_given(&self, lab: &Lab) -> anyhow::Result<()> {
        match self.cargo(lab)? {
            Built::Program(program) => {
                self.sources.borrow_mut().insert(lab.name, sources(&program)?);
                Ok(())
            }
            Built::Broken(errors) => bail!("the course's own files do not compile: {}", errors[0].text),
        }
    }

    /// Builds a learner's answers to a lab.
    pub(crate) fn build(&self, lab: &Lab, tasks: &Tasks, handed: &Handed) -> anyhow::Result<BuiltAnswers> {
        let given = &self.given[lab.name];
        let (mut files, mut left_out) = handed.collect(tasks, given);
        loop {
            self.write_package(lab, &files)?;
            let errors = match self.cargo(lab)? {
                Built::Program(program) => {
                    if let Some(file) = self.foreign_source(lab, &program)? {
                        let why = format!("an answer reads {}, which is not a part of it", foreign::path(&file));
                        let open: Vec<_> =
                            tasks.tasks.iter().filter(|task| !left_out.contains_key(&task.name)).collect();
                        anyhow::ensure!(!open.is_empty(), "the course's own files: {why}");
                        for task in open {
                            left_out.insert(task.name.clone(), Some(why.clone()));
                            files.insert(task.file(), given[&task.file()].clone());
                        }
                        continue;
                    }
                    let submission = Submission { program: (&*program).into(), folder: self.package(lab) };
                    return Ok(BuiltAnswers { submission, left_out, _own: None });
                }
                Built::Broken(errors) => errors,
            };
            let broken: BTreeSet<&str> = tasks
                .tasks
                .iter()
                .filter(|task| !left_out.contains_key(&task.name))
                .filter(|task| errors.iter().any(|error| is_in(error, &task.file())))
                .map(|task| task.name.as_str())
                .collect();
            // An error elsewhere, such as a missing function, is also the fault of an answer, but it is unknown which.
            let broken =
                if broken.is_empty() { tasks.tasks.iter().map(|task| task.name.as_str()).collect() } else { broken };
            if broken.iter().all(|name| left_out.contains_key(*name)) {
                bail!("the course's own files do not compile: {}", errors[0].text);
            }
            for task in tasks.tasks.iter().filter(|task| broken.contains(task.name.as_str())) {
                let error = errors.iter().find(|error| is_in(error, &task.file())).unwrap_or(&errors[0]);
                left_out.insert(task.name.clone(), Some(format!("does not compile: {}", error.text.trim())));
                files.insert(task.file(), given[&task.file()].clone());
            }
        }
    }

    /// A file that was compiled into the program, and is neither the course's nor in the package; a macro can hide from [`reads_files`] what
    /// it reads.
    fn foreign_source(&self, lab: &Lab, program: &Path) -> anyhow::Result<Option<PathBuf>> {
        let (all, package) = (self.sources.borrow(), self.package(lab).canonicalize()?);
        let is_known =
            |file: &PathBuf| file.starts_with(&package) || all.get(lab.name).is_some_and(|of| of.contains(file));
        Ok(sources(program)?.into_iter().find(|file| !is_known(file)))
    }

    /// Writes the package again, with the checkout's crates and without its test.
    fn write_package(&self, lab: &Lab, files: &Files) -> anyhow::Result<()> {
        let folder = self.package(lab);
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
        bounded.env("CARGO_TARGET_DIR", &self.folder);
        let mut messages =
            tempfile::tempfile_in(temporary_folder()).context("cannot make a file for cargo's messages")?;
        bounded.stdout(messages.try_clone()?);
        // A compiler that crashes prints pages.
        let mut said = tempfile::tempfile_in(temporary_folder())?;
        let is_given = !self.sources.borrow().contains_key(lab.name);
        if !is_given {
            bounded.stderr(said.try_clone()?);
        }
        let group = Group::start(&mut bounded).context("cannot start cargo")?;
        let deadline = BUILD_DEADLINES[usize::from(!is_given)];
        let pid = group.id().as_raw_nonzero().get();
        let wait = || group.finish(Instant::now() + deadline, &self.signals);
        let status = match telling_what_takes_long(pid, &lab.package(), wait)? {
            Outcome::Ended(status) => status,
            Outcome::Signalled(signal) => return Err(Interrupted { signal }.into()),
            Outcome::TimedOut => {
                let text = format!("the compiler was stopped after {} s", deadline.as_secs());
                return Ok(Built::Broken(vec![CompileError { file: None, text }]));
            }
        };
        let text = read_again(&mut messages)?;
        let built = built(&text, &lab.package(), status.success());
        // Such as a compiler that crashes, or needs more memory than it may.
        built.or_else(|error| {
            anyhow::ensure!(!is_given, error);
            let said = String::from_utf8_lossy(&read_again(&mut said)?).into_owned();
            let why = said.lines().find(|line| CRASHES.iter().any(|words| line.contains(words)));
            let why = why.map_or_else(|| format!("{error:#}"), foreign::one_line);
            Ok(Built::Broken(vec![CompileError { file: None, text: format!("the compiler failed: {why}") }]))
        })
    }
}

/// Where a compiler that ends without a message for programs says why.
const CRASHES: [&str; 3] = ["memory allocation of", "error: ", "(signal: "];

fn read_again(file: &mut fs::File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    io::Seek::rewind(file)?;
    file.take(MESSAGES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The files that were compiled into a program. Cargo lists them next to it.
fn sources(program: &Path) -> anyhow::Result<BTreeSet<PathBuf>> {
    let list = program.with_extension("d");
    let text = fs::read_to_string(&list).with_context(|| format!("cannot read {}", foreign::path(&list)))?;
    let files = text.split_once(": ").map_or("", |(_, files)| files).replace("\\ ", "\0");
    let files = files.split_whitespace().map(|file| PathBuf::from(file.replace('\0', " ")));
    Ok(files.map(|file| file.canonicalize().unwrap_or(file)).collect())
}

/// Returns true if the error is in this file of the package.
fn is_in(error: &CompileError, file: &Path) -> bool {
    error.file.as_ref().is_some_and(|of| Path::new(of).ends_with(file))
}

/// The learners' packages, in the class's workspace.
const PACKAGES: &str = "class";
/// What the class's workspace has of the checkout, as links. cargo knows a crate by its path in the workspace.
const LINKED: [&str; 5] = ["crates", "engine", "harness", "labs", "template"];
/// Crates that compile C++, or libtorch's binding, which take a minute; others take a second or two.
const WITH_CPP: [&str; 3] = ["c10d", "tch", "torch-sys"];

fn replace_link(to: &Path, at: &Path) -> io::Result<()> {
    match fs::read_link(at) {
        Ok(old) if old == to => return Ok(()),
        Ok(_) => fs::remove_file(at)?,
        Err(_) => {}
    }
    std::os::unix::fs::symlink(to, at)
}

/// The checkout's workspace with the learners' packages in place of its exercises.
fn workspace_manifest(mut manifest: Table) -> anyhow::Result<Table> {
    let workspace =
        manifest.get_mut("workspace").and_then(Value::as_table_mut).context("Cargo.toml has no workspace")?;
    let members = workspace.get_mut("members").and_then(Value::as_array_mut).context("Cargo.toml has no members")?;
    members.retain(|member| !member.as_str().is_some_and(|member| member.starts_with("labs/*/")));
    members.push(format!("{PACKAGES}/*").into());
    workspace.remove("default-members");
    workspace.remove("exclude");
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
pub(crate) struct Handed {
    folder: PathBuf,
    language: Language,
}

impl Handed {
    /// Finds a lab's answers in a language in a learner's folder, if there are any.
    pub(crate) fn find(learner: &Path, lab: &Lab, language: Language) -> Result<Option<Self>, String> {
        let places = match language {
            Language::Rust => [
                format!("labs/{}/exercise/src", lab.name),
                format!("{}/src", lab.package()),
                format!("{}/src", lab.name),
            ],
            Language::Python => ["python/tasks/", "tasks/", ""].map(|above| above.to_owned() + &lab.python_folder()),
        };
        for place in places.map(|place| learner.join(place)) {
            let folders = place.ancestors().take_while(|folder| *folder != learner);
            if let Some(link) = folders.filter(|folder| folder.is_symlink()).last() {
                return Err(format!("{} is a link, which is not followed", foreign::path(link)));
            }
            match fs::read_dir(&place) {
                Ok(_) => return Ok(Some(Handed { folder: place, language })),
                Err(error) if [ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&error.kind()) => {}
                Err(error) => return Err(format!("cannot read {}: {error}", foreign::path(&place))),
            }
        }
        Ok(None)
    }

    fn is_rust(&self) -> bool {
        self.language == Language::Rust
    }

    /// What its name has in a report where the learner has answers in both languages.
    fn suffix(&self) -> &'static str {
        if self.is_rust() { "" } else { "-python" }
    }

    /// Returns true if a task's file is not as the course provides it.
    fn is_begun(&self, lab: &Lab, given: &Files) -> bool {
        let tasks = lab.tasks().map(|tasks| tasks.tasks).unwrap_or_default();
        let files = tasks.iter().filter_map(|task| Some((task, given.get(&task.file_in(self.language))?)));
        files.into_iter().any(|(task, text)| self.read(task).transpose().is_some_and(|read| read.as_ref() != Ok(text)))
    }

    /// The files of a lab with these answers in them; the given ones stay where an answer is left out.
    fn collect(&self, tasks: &Tasks, given: &Files) -> (Files, LeftOut) {
        let (mut files, mut left_out) = (given.clone(), LeftOut::new());
        for task in &tasks.tasks {
            match self.read(task) {
                Ok(Some(text)) => drop(files.insert(task.file_in(self.language), text)),
                Ok(None) => drop(left_out.insert(task.name.clone(), None)),
                Err(why) => drop(left_out.insert(task.name.clone(), Some(why))),
            }
        }
        (files, left_out)
    }

    /// The text of a task's answer, if its file was handed in.
    ///
    /// Errors: why it cannot be read, for the report. Links and devices are not followed.
    pub(crate) fn read(&self, task: &Task) -> Result<Option<String>, String> {
        let file = format!("{}.{}", task.name, self.language.extension());
        let path = self.folder.join(&file);
        let name = format!("{}/{file}", self.folder.file_name().unwrap_or_default().to_string_lossy());
        let data = match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            data => data.map_err(|error| format!("cannot read {name}: {error}"))?,
        };
        if !data.is_file() {
            return Err(format!("{name} is not a regular file"));
        }
        if data.len() > LONGEST {
            return Err(format!("{name} has {} bytes, of {LONGEST} that are allowed", data.len()));
        }
        let text = fs::read_to_string(&path).map_err(|error| format!("cannot read {name}: {error}"))?;
        match self.is_rust().then(|| reads_files(&text)).flatten() {
            Some(how) => Err(format!("{name} reads another file with `{how}`: an answer is one file")),
            None => Ok(Some(text)),
        }
    }
}

/// Returns what in this text makes the compiler read another file, which may be another learner's, the course's answer, or a pipe without an
/// end. What macros hide, [`ClassWorkspace::foreign_source`] finds.
fn reads_files(text: &str) -> Option<&'static str> {
    let mut parser = Parser::new();
    parser.set_language(&tree_sitter_rust::LANGUAGE.into()).expect("the grammar is of the library's version");
    let tree = parser.parse(text, None)?;
    let (mut at, mut before, mut brackets) = (tree.walk(), "", 0_usize);
    loop {
        let node = at.node();
        let is_opaque = node.kind().ends_with("comment") || node.kind().ends_with("_literal");
        if !is_opaque && at.goto_first_child() {
            continue;
        }
        let word = if is_opaque { "" } else { text[node.byte_range()].trim_start_matches("r#") };
        match (before, word) {
            (_, "include_str") => return Some("include_str!"),
            (_, "include_bytes") => return Some("include_bytes!"),
            ("include", "!" | "as") => return Some("include!"),
            // In brackets, as attributes are.
            ("path", "=") if brackets > 0 => return Some("#[path]"),
            (_, "[") => brackets += 1,
            (_, "]") => brackets = brackets.saturating_sub(1),
            _ => {}
        }
        if !node.kind().ends_with("comment") {
            before = word;
        }
        while !at.goto_next_sibling() {
            if !at.goto_parent() {
                return None;
            }
        }
    }
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
            assert_eq!(Handed::find(learner.path(), &lab, Language::Rust), Ok(None));
            let source = learner.path().join(place);
            fs::create_dir_all(&source).unwrap();
            let handed = Handed::find(learner.path(), &lab, Language::Rust).unwrap().unwrap();
            assert_eq!(handed.read(task), Ok(None));
            fs::write(source.join("shard.rs"), "answer").unwrap();
            assert_eq!(handed.read(task), Ok(Some("answer".into())));
        }
    }

    #[test]
    fn takes_answers_in_python_from_each_layout_and_knows_those_that_are_as_given() {
        let lab = crate::labs::find("02").unwrap();
        let tasks = lab.tasks().unwrap();
        let given = package::files_in(Path::new(""), &lab, Language::Python).unwrap();
        for place in ["python/tasks/02_spawn_ddp", "tasks/02_spawn_ddp", "02_spawn_ddp"] {
            let learner = tempfile::tempdir().unwrap();
            let find = || Handed::find(learner.path(), &lab, Language::Python).unwrap();
            assert_eq!(find(), None);
            given
                .iter()
                .for_each(|(path, text)| package::write_file(&learner.path().join(place).join(path), text).unwrap());
            let handed = find().unwrap();
            assert!(!handed.is_begun(&lab, &given));
            fs::write(learner.path().join(place).join("shard.py"), "include_str!").unwrap();
            assert_eq!(handed.read(&tasks.tasks[0]), Ok(Some("include_str!".into())));
            assert!(handed.is_begun(&lab, &given));
            assert_eq!(Handed::find(learner.path(), &lab, Language::Rust), Ok(None));
        }
    }

    #[test]
    fn follows_no_link_to_another_learners_folder() {
        let lab = crate::labs::find("02").unwrap();
        let class = tempfile::tempdir().unwrap();
        fs::create_dir_all(class.path().join("bbb/ex-02/src")).unwrap();
        for (link, to) in [("labs", "../bbb"), ("ex-02", "../bbb/ex-02"), ("ex-02/src", "../../bbb/ex-02/src")] {
            let aaa = class.path().join("aaa");
            let link = aaa.join(link);
            fs::create_dir_all(link.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(to, &link).unwrap();
            assert!(
                Handed::find(&aaa, &lab, Language::Rust).unwrap_err().ends_with("is a link, which is not followed"),
                "{to}"
            );
            fs::remove_dir_all(aaa).unwrap();
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
        let handed = Handed::find(learner.path(), &lab, Language::Rust).unwrap().unwrap();
        assert!(handed.read(task).unwrap_err().contains("not a regular file"));
        fs::remove_file(&file).unwrap();
        fs::write(&file, vec![b' '; LONGEST as usize + 1]).unwrap();
        assert!(handed.read(task).unwrap_err().contains("bytes"));
        for text in [
            "let path = \"x\"; { path = y; vec![(1, path == z)] }",
            "// include_str!\nlet include = 1;",
            "\"unfinished",
        ] {
            assert_eq!(reads_files(text), None, "{text}");
        }
        assert_eq!(reads_files(&["[", "]"].map(|sign| sign.repeat(100_000)).concat()), None);
        for (text, how) in [
            ("#[path = \"../../bbb/src/shard.rs\"]\nmod other;", "#[path]"),
            ("#[r#path /* */ = r\"/x.rs\"] mod other;", "#[path]"),
            ("#[cfg_attr(all(), path = r\"/x.rs\")] mod other;", "#[path]"),
            ("macro_rules! m { ($a:meta) => { #[$a] mod other; } } m!([path = \"/x.rs\"]);", "#[path]"),
            ("const P: &str = include_str /* */ ! (\"pipe\");", "include_str!"),
            ("use std::include_bytes as read;", "include_bytes!"),
            ("use std::include as read;", "include!"),
        ] {
            fs::write(&file, text).unwrap();
            assert!(handed.read(task).unwrap_err().contains(&format!("with `{how}`")), "{text}");
        }
    }
}
