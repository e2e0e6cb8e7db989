//! `lockstep grade` builds and grades the answers of this checkout, lab by lab, up to the first finding. `lockstep watch` does so after
//! every change of a file.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use lockstep_contract::foreign;
use lockstep_grading::grade::Submission;
use lockstep_grading::{Lab, Options as Grading, learner};
use notify::{Config, EventKind, PollWatcher, RecommendedWatcher, RecursiveMode, Watcher};

use crate::cargo::{Built, build};
use crate::exit::{Code, Refused};
use crate::labs::{checkout, find, find_all};
use crate::learn::class::Class;
use crate::learn::task;
use crate::report::Target;

/// Grade the exercises: tasks in order, up to the first that is not right
#[derive(Args)]
pub(crate) struct Grade {
    /// Labs by number or name, or one lab and tasks of it [default: all labs]
    #[arg(value_name = "LAB")]
    labs: Vec<String>,
    /// Only this task of the lab; may be repeated
    #[arg(long = "task", value_name = "TASK", requires = "labs")]
    tasks: Vec<String>,
    /// Seed of the inputs, as a finding names it
    #[arg(long)]
    seed: Option<u64>,
    /// Grade a class instead: a folder with one folder per learner, whose answers cannot write outside it
    #[arg(long, value_name = "DIR", conflicts_with = "tasks")]
    class: Option<PathBuf>,
    /// Where the class's report goes: a .csv, .json, .xml (JUnit), .html or .txt file; may be repeated
    #[arg(long = "report", value_name = "FILE", requires = "class")]
    reports: Vec<Target>,
}

impl Grade {
    pub(crate) fn exec(mut self) -> anyhow::Result<Code> {
        if self.class.is_none() {
            self.split_tasks();
        }
        let (root, labs) = (checkout()?, find_all(&self.labs)?);
        let options = lockstep_grading::Options::seeded(self.seed);
        if let Some(folder) = self.class {
            return Class::open(root, folder, labs)?.grade(options, &self.reports);
        }
        if !self.tasks.is_empty() {
            let [lab] = &labs[..] else {
                return Err(Refused("--task is of one lab: lockstep grade LAB --task TASK".into()).into());
            };
            let tasks = lab.tasks()?;
            self.tasks.iter().try_for_each(|name| task(&tasks, name).map(drop))?;
        }
        for lab in labs {
            if !grade(&root, &lab, &self.tasks, &options, &mut std::io::stdout())? {
                return Ok(Code::Failure);
            }
        }
        Ok(Code::Success)
    }

    /// Words after the first lab that are its tasks, or at least no labs, become tasks, as other commands have them: `lockstep grade 02
    /// average`.
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
    options: &lockstep_grading::Options,
    out: &mut dyn Write,
) -> anyhow::Result<bool> {
    match build(root, &lab.package())? {
        Built::Program(program) => {
            let submission = Submission { program, folder: lab.exercise(root) };
            learner::run(lab, tasks, &submission, options, out)
        }
        Built::Broken(errors) => {
            writeln!(out, "{}", errors[0].text)?;
            let more = errors.len() - 1;
            let others = if more == 0 { String::new() } else { format!("; {more} more errors follow it") };
            writeln!(out, "✗ lab {}: the exercise does not compile{others}", lab.number())?;
            Ok(false)
        }
    }
}

/// An editor's save is several events: it is over when no event has come for this long.
const QUIET: Duration = Duration::from_millis(150);

/// Grade a lab's exercise whenever one of its files is saved, until Ctrl-C
#[derive(Args)]
pub(crate) struct Watch {
    /// The lab, by number or name
    lab: String,
    /// Look for changes at this interval in seconds, for network file systems without change events
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    poll: Option<u64>,
}

impl Watch {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        let (root, lab) = (checkout()?, find(&self.lab)?);
        let sources = lab.exercise(&root).join("src");
        let (_watcher, changes) = self.watch(&sources)?;
        loop {
            if let Err(error) = grade(&root, &lab, &[], &Grading::seeded(None), &mut std::io::stdout()) {
                eprintln!("error: {error:#}");
            }
            println!("watching labs/{}/exercise/src; Ctrl-C ends", lab.name);
            changes.recv().context("the watcher for changes has ended")?;
            while changes.recv_timeout(QUIET) != Err(RecvTimeoutError::Timeout) {}
        }
    }

    /// Reports changes in a folder for as long as the watcher lives.
    fn watch(&self, folder: &Path) -> anyhow::Result<(Box<dyn Watcher>, Receiver<()>)> {
        let (sender, changes) = channel();
        let tell = move |event: notify::Result<notify::Event>| {
            let changed = event.is_ok_and(|event| !matches!(event.kind, EventKind::Access(_)));
            if changed {
                // At the end the receiver is gone.
                let _ = sender.send(());
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
        watcher.watch(folder, RecursiveMode::NonRecursive).with_context(|| {
            format!("cannot watch {} (on a network file system, try --poll 2)", foreign::path(folder))
        })?;
        Ok((watcher, changes))
    }
}
