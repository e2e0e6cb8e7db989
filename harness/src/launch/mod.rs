//! `lockstep run`: starts a program once for each rank, watches over it, and starts it anew when one fails.
//!
//! The command line is torchrun's. What its flags mean is `lockstep_launch::config`'s to say, and all the running is
//! `lockstep_launch::agent`'s.

mod options;
mod plan;

use std::ffi::OsString;
use std::io::{Write, stderr};
use std::path::Path;

use lockstep_launch::agent::{self, Verdict};
use lockstep_launch::config::{Config, ConfigError, HostInfo, threads_notice};
use lockstep_launch::report::propagate_agent_error;

use crate::exit::{Code, Refused};

pub(crate) use options::Options;

impl Options {
    /// Runs the job, or says why it cannot be run.
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        let env = |name: &str| std::env::var_os(name);
        let dry_run = self.dry_run;
        let (config, notices) = match self.config(&HostInfo::here(&env)) {
            Ok(made) => made,
            Err(error) if error.is_usage() => return Err(Refused(format!("{error}\n\n{TRY_HELP}")).into()),
            Err(error) => return Err(left_for_the_caller(error.into())),
        };
        for notice in notices.into_iter().chain(threads_notice(&config, &env)) {
            // Nobody may be listening any more; that is no reason not to train.
            let _ = writeln!(stderr(), "note: {notice}");
        }
        if dry_run { plan::show(&config) } else { start(&config) }
    }

    fn config(self, host: &HostInfo<'_>) -> Result<(Config, Vec<String>), ConfigError> {
        Config::from_flags(&self.flags(host.env)?, host)
    }
}

const TRY_HELP: &str = "For more information, try `lockstep run --help`";

fn start(config: &Config) -> anyhow::Result<Code> {
    match agent::run(config).map_err(left_for_the_caller)? {
        Verdict::Succeeded => Ok(Code::Success),
        Verdict::Failed => Ok(Code::Failure),
    }
}

/// Whoever started this command finds the error where it looks for one (torch's `record`, around `main`).
fn left_for_the_caller(error: anyhow::Error) -> anyhow::Error {
    if let Some(path) = std::env::var_os("TORCHELASTIC_ERROR_FILE").filter(|path: &OsString| !path.is_empty())
        && let Err(why) = propagate_agent_error(&error, Path::new(&path))
    {
        return error.context(format!("cannot write {} (TORCHELASTIC_ERROR_FILE): {why}", Path::new(&path).display()));
    }
    error
}
