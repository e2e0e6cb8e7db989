//! Where a class's answers are compiled: a separate workspace under `target`, whose packages depend on the checkout's crates.
//!
//! It shares the checkout's target folder, so that libtorch's binding is not compiled again, and holds the learners' answers
//! one after the other. An answer that does not compile is replaced by the skeleton, so that it does not prevent grading the
//! others.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use lockstep_grading::exercise::Tasks;
use lockstep_grading::grade::Submission;
use lockstep_grading::{Lab, package};
use lockstep_paths::temporary_folder;
use lockstep_process::{Group, Outcome, Signals};
use toml::{Table, Value};

use super::submission::Handed;
use crate::exit::Interrupted;
use crate::learn::build::{Built, CompileError, command, read};

/// Time limit of cargo for one answer; the first one compiles the course's crates.
const DEADLINE: Duration = Duration::from_secs(900);
/// Memory limit of the compiler, in KiB.
const MEMORY: u64 = 8 << 20;
/// How many bytes of cargo's messages are read at most.
const MESSAGES: u64 = 32 << 20;

/// The workspace.
pub(super) struct ClassWorkspace {
    root: PathBuf,
    folder: PathBuf,
    signals: Signals,
    /// The packages of the labs, by name, as the course provides them.
    given: BTreeMap<&'static str, Files>,
}

/// The files of a package, by their relative paths.
type Files = BTreeMap<PathBuf, String>;

/// A learner's program.
pub(super) struct BuiltAnswers {
    pub(super) submission: Submission,
    /// The tasks whose answers were left out, with the reasons.
    pub(super) refused: BTreeMap<String, String>,
}

impl ClassWorkspace {
    /// Creates the workspace for these labs.
    pub(super) fn open(root: PathBuf, labs: &[Lab]) -> anyhow::Result<Self> {
        let folder = root.join("target").join("class");
        let signals = Signals::listen().context("cannot listen for signals")?;
        let given =
            labs.iter().map(|lab| Ok((lab.name, package::files(&root, lab)?))).collect::<anyhow::Result<_>>()?;
        let workspace = ClassWorkspace { root, folder, signals, given };
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
    pub(super) fn build(&self, lab: &Lab, tasks: &Tasks, handed: &Handed) -> anyhow::Result<BuiltAnswers> {
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
        let cargo = command(&self.folder, &lab.package());
        // The shell limits the compiler's memory: this crate has no unsafe code, so it cannot set a child's limits itself.
        let mut bounded = std::process::Command::new("sh");
        bounded.args(["-c", &format!("ulimit -v {MEMORY}; exec \"$@\""), "sh"]).arg(cargo.get_program());
        bounded.args(cargo.get_args()).current_dir(&self.folder).stdin(Stdio::null());
        bounded.env("CARGO_TARGET_DIR", self.root.join("target"));
        let mut messages =
            tempfile::tempfile_in(temporary_folder()).context("cannot make a file for cargo's messages")?;
        bounded.stdout(messages.try_clone()?);
        let group = Group::start(&mut bounded).context("cannot start cargo")?;
        let status = match group.finish(Instant::now() + DEADLINE, &self.signals)? {
            Outcome::Ended(status) => status,
            Outcome::Signalled(signal) => return Err(Interrupted { signal }.into()),
            Outcome::TimedOut => {
                let text = format!("the compiler was stopped after {} s", DEADLINE.as_secs());
                return Ok(Built::Broken(vec![CompileError { file: None, text }]));
            }
        };
        let mut text = Vec::new();
        std::io::Seek::rewind(&mut messages)?;
        messages.take(MESSAGES).read_to_end(&mut text)?;
        read(&text, &lab.package(), status.success())
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
