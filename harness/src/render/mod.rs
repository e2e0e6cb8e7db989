//! `lockstep render`: writes a batch script for a site, or checks one that somebody wrote.
//!
//! - [`profile`]: what a site is like; [`job`]: what one job wants of it.
//! - [`slurm`], [`pbs`], [`hosts`]: scripts, one module for each way to get nodes. [`agent`] is what they share that do not use srun:
//!   a second script that runs on each node. [`pieces`] is what all share.

mod agent;
mod hosts;
mod job;
mod pbs;
mod pieces;
pub(crate) mod profile;
mod slurm;

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;

use crate::exit::{Code, Refused};
use job::Job;
use profile::{EXAMPLES, FIELDS, Field, Profile, Scheduler};

const AFTER_HELP: &str = "\
In ARGS, {task} becomes the number of the array's task, and {local} the folder on the node's own disk with what --stage has copied.

The script starts one launcher on each node, and the launcher starts the workers. With --signal, the workers are asked for a \
snapshot that long before the time limit, and the job is queued again; PROGRAM must go on from its snapshots when it is started \
again.";

/// Writes a batch script for a site's scheduler
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Options {
    /// The site: a TOML file, or an example by name
    #[arg(long, value_name = "SITE", required_unless_present_any = ["list", "show"])]
    profile: Option<String>,
    #[command(flatten)]
    wish: job::Wish,
    /// Write the script to this file instead of stdout
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// List the example profiles
    #[arg(long, exclusive = true)]
    list: bool,
    /// Print an example profile: a place to begin one of your own
    #[arg(long, value_name = "NAME", exclusive = true)]
    show: Option<String>,
}

impl Options {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        let text = if self.list {
            EXAMPLES.iter().map(|(name, text)| format!("{name:<26} {}\n", first_comment(text))).collect()
        } else if let Some(name) = &self.show {
            example(name)?.to_owned()
        } else {
            let name = self.profile.unwrap_or_default(); // the parser demands one
            let profile = profile::find(&name)?;
            script(&name, &profile, &Job::of(self.wish, &profile)?)
        };
        match &self.out {
            Some(path) => std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?,
            None => std::io::stdout().lock().write_all(text.as_bytes()).context("cannot write to stdout")?,
        }
        Ok(Code::Success)
    }
}

/// The book's page on the fields of a site profile, without its title.
pub(crate) fn profile_page() -> String {
    let mut page = String::from(
        "A site profile is a TOML file. It tells `lockstep render` what a cluster is like; [Batch scripts](batch-scripts.md) explains \
         the command. An unknown field is refused, with the nearest name.\n\n<div class=\"wide\">\n\n| field | such as | meaning |\n|---|---|---|\n",
    );
    for Field { name, example, meaning } in FIELDS {
        page.push_str(&format!("| `{name}` | `{example}` | {meaning} |\n"));
    }
    page + "\n</div>\n"
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
