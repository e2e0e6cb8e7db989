//! `lockstep render`: writes a batch script for a site, or checks one that somebody wrote.
//!
//! - [`profile`]: what a site is like; [`job`]: what one job asks of it.
//! - [`schedulers`]: the scripts, for each way to get nodes. [`agent`] is what those share that do not use srun: a second script that
//!   runs on each node.
//! - [`mistakes`]: what `lockstep render --check` finds in scripts that others wrote; the rules are in a file for each subject. [`evaluate`] makes a
//!   [`script`] of a text, by bash's grammar and what is known of its [`words`] before it runs.

mod agent;
mod evaluate;
mod job;
mod kept;
mod mistakes;
pub(crate) mod profile;
mod schedulers;
mod script;
mod words;

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use lockstep_contract::foreign;

use crate::exit::{Code, Refused};
use crate::report::{Screen, Stdout};
use crate::rules::sections;
use job::{BatchJob, JobRequest};
use profile::{EXAMPLES, FIELDS, Field, Profile, Scheduler};

const AFTER_HELP: &str = "\
In ARGS, {task} becomes the number of the array's task, and {local} the folder on the node's own disk with what --stage has copied.

The script starts one launcher on each node, and the launcher starts the workers. With --signal, the launchers are asked \
to end that long before the time limit: `lockstep run` by SIGUSR2, so that workers that handle it save a snapshot first, other launchers by \
SIGTERM. Then the job is queued again; PROGRAM must go on from its snapshots when it is started again.";

/// Write a batch script for a site's scheduler, or find the mistakes in one
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub struct RenderOptions {
    /// The site: a TOML file, or an example by name
    #[arg(long, value_name = "SITE", required_unless_present_any = ["check", "list", "show"])]
    profile: Option<String>,
    #[command(flatten)]
    request: JobRequest,
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

impl RenderOptions {
    pub fn exec(self) -> anyhow::Result<Code> {
        if !self.check.is_empty() {
            return mistakes::check(&self.check, self.json);
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
            script(&name, &profile, &BatchJob::of(self.request, &profile)?)
        };
        match &self.out {
            Some(path) => {
                std::fs::write(path, text).with_context(|| format!("cannot write {}", foreign::path(path)))?
            }
            None => Stdout.write_all(text.as_bytes()).context("cannot write to stdout")?,
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
fn script(name: &str, profile: &Profile, job: &BatchJob) -> String {
    match profile.scheduler {
        Scheduler::Slurm => schedulers::slurm(name, profile, job),
        Scheduler::Pbs => schedulers::pbs(name, profile, job),
        Scheduler::Ssh | Scheduler::Mpirun => schedulers::hosts(name, profile, job),
    }
}

/// The book's page on the fields of a site profile, without its title.
pub fn profile_page() -> String {
    let mut page = String::from(
        "A site profile is a TOML file. It tells `lockstep render` what a cluster is like; [Batch scripts](batch-scripts.md) explains \
         the command. An unknown field is refused, with the nearest name.\n\n<div class=\"wide\">\n\n| field | such as | meaning \
         |\n|---|---|---|\n",
    );
    for Field { name, example, meaning } in FIELDS {
        page.push_str(&format!("| `{name}` | `{example}` | {meaning} |\n"));
    }
    page + "\n</div>\n"
}

/// The book's page on the mistakes that `--check` knows, without its title.
pub fn mistakes_page() -> String {
    let intro = format!(
        "`lockstep render --check FILE` knows {} kinds of mistake; [Batch scripts](batch-scripts.md#check-a-script) explains the command. An \
         *error* makes a job fail, hang or do something else than the script says. A *warning* makes it slow, or fail in some cases.\n",
        mistakes::all().count()
    );
    intro + &sections(mistakes::all(), |text| text.trim_end().replace('\r', "^M"))
}
