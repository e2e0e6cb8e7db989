//! The command: its options, and what it does.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use lockstep_contract::foreign;

use super::job::{Job, Wish};
use super::profile::{self, EXAMPLES, Profile, Scheduler};
use super::{check, hosts, pbs, slurm};
use crate::exit::{Code, Refused};
use crate::report::Screen;

const AFTER_HELP: &str = "\
In ARGS, {task} becomes the number of the array's task, and {local} the folder on the node's own disk with what --stage has copied.

The script starts one launcher on each node, and the launcher starts the workers. With --signal, the launchers are asked \
to end that long before the time limit: `lockstep run` by SIGUSR2, so that workers that handle it save a snapshot first, other launchers by \
SIGTERM. Then the job is queued again; PROGRAM must go on from its snapshots when it is started again.";

/// Write a batch script for a site's scheduler, or find the mistakes in one
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Options {
    /// The site: a TOML file, or an example by name
    #[arg(long, value_name = "SITE", required_unless_present_any = ["check", "list", "show"])]
    profile: Option<String>,
    #[command(flatten)]
    wish: Wish,
    /// Write the script to this file instead of stdout
    #[arg(long, value_name = "FILE", value_parser = lockstep_paths::parse_file)]
    out: Option<PathBuf>,
    /// Read these scripts, and list the mistakes in them; code 1 if one of them is an error
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["profile", "out", "program"])]
    check: Vec<PathBuf>,
    /// With --check: print the list as JSON
    #[arg(long, requires = "check")]
    json: bool,
    /// List the example profiles
    #[arg(long, exclusive = true)]
    list: bool,
    /// Print an example profile: a place to begin one of your own
    #[arg(long, value_name = "NAME", exclusive = true)]
    show: Option<String>,
}

impl Options {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        if !self.check.is_empty() {
            return check::check(&self.check, self.json);
        }
        if self.list {
            let entries: Vec<_> = EXAMPLES.iter().map(|(name, text)| (*name, first_comment(text))).collect();
            Screen::new(false).listing(&entries);
            return Ok(Code::Success);
        }
        let text = if let Some(name) = &self.show {
            example(name)?.to_owned()
        } else {
            let name = self.profile.unwrap_or_default(); // the parser demands one
            let profile = profile::find(&name)?;
            script(&name, &profile, &Job::of(self.wish, &profile)?)
        };
        match &self.out {
            Some(path) => {
                std::fs::write(path, text).with_context(|| format!("cannot write {}", foreign::path(path)))?
            }
            None => std::io::stdout().lock().write_all(text.as_bytes()).context("cannot write to stdout")?,
        }
        Ok(Code::Success)
    }
}

fn first_comment(text: &str) -> &str {
    text.lines().next().unwrap_or_default().trim_start_matches("# ")
}

fn example(name: &str) -> Result<&'static str, Refused> {
    let found = EXAMPLES.iter().find(|(known, _)| *known == name).map(|(_, text)| *text);
    found.ok_or_else(|| Refused(format!("there is no example profile {name:?}: `lockstep render --list` lists them")))
}

/// The batch script of a job at a site; `name` is what the user calls the site.
fn script(name: &str, profile: &Profile, job: &Job) -> String {
    match profile.scheduler {
        Scheduler::Slurm => slurm::script(name, profile, job),
        Scheduler::Pbs => pbs::script(name, profile, job),
        Scheduler::Ssh | Scheduler::Mpirun => hosts::script(name, profile, job),
    }
}
