//! The common parts of the commands that run jobs: their runner, and their final report.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use clap::Args;

use super::job_run::{JobRunner, LAB, Launcher};
use super::suite_runner::SuiteRunner;
use crate::exit::Code;
use crate::lab_run::program_beside;
use crate::report::{Case, HostInfo, Report, Screen, Target, Verdict, command_line};
use lockstep_process::Signals;

/// The options of a command that runs a series of jobs.
#[derive(Args)]
pub(crate) struct SeriesOptions {
    /// Keep the files of all runs in this folder, which must be new or empty; those of failed runs are always kept
    #[arg(long, value_name = "DIR", value_parser = lockstep_paths::parse_folder)]
    pub(crate) keep: Option<PathBuf>,
    /// Another launcher with torchrun's flags, in place of `lockstep run`
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) launcher: Option<PathBuf>,
    /// Write a report: a page (.html), .json, JUnit's .xml, .txt, or JSON on stdout (-); may be repeated
    #[arg(long = "report", value_name = "FILE")]
    pub(crate) reports: Vec<Target>,
}

impl SeriesOptions {
    /// Returns true if a report goes to stdout.
    pub(crate) fn takes_stdout(&self) -> bool {
        self.reports.iter().any(Target::is_stdout)
    }
}

/// Settings of all runs.
///
/// # Errors
/// The lab is needed but not built.
pub(crate) fn job_runner(
    launcher: Option<PathBuf>,
    timeout: Option<Duration>,
    needs_lab: bool,
) -> anyhow::Result<JobRunner> {
    let lab = if needs_lab { program_beside(LAB)? } else { PathBuf::new() };
    let launcher = launcher.map_or(Launcher::Own, Launcher::Other);
    Ok(JobRunner {
        launcher,
        lab,
        signals: Signals::listen().context("cannot listen for signals")?,
        timeout,
        listener: None,
    })
}

/// A report of this command on this machine.
pub(crate) fn report(title: &str, started: SystemTime, took: Duration, cases: Vec<Case>) -> Report {
    let machine = HostInfo::here();
    let untried = cases.iter().filter(|case| case.verdict() == Verdict::NotVerified && case.timeline.is_none());
    let reasons =
        untried.flat_map(|case| case.findings.iter().map(|finding| format!("{}: {}", case.name, finding.evidence)));
    let not_verified = machine.not_verified().into_iter().chain(reasons).collect();
    Report { title: title.into(), command: command_line(), started, took, machine, not_verified, cases }
}

/// Writes the report, prints where the runs' files are, and returns the exit code. A signal that arrived after the runs is
/// handled here.
///
/// # Errors
/// A report cannot be written.
pub(crate) fn finish(screen: &Screen, suite: SuiteRunner, report: &Report, targets: &[Target]) -> anyhow::Result<Code> {
    targets.iter().try_for_each(|target| report.write(target))?;
    suite.check_signals()?;
    if let Some(folder) = suite.close() {
        screen.line(format!("files in {}", folder.display()));
    }
    Ok(if report.verdict() == Verdict::Failed { Code::Failure } else { Code::Success })
}
