//! Runs the command.

use std::ffi::OsString;
use std::io::{Write, stderr};
use std::path::Path;

use lockstep_contract::foreign;

use super::{Options, plan};
use crate::agent::{self, Ended};
use crate::config::{Config, ConfigError, HostInfo, threads_notice};
use crate::exit::{Code, Refused};
use crate::report::propagate_agent_error;
use crate::scheduler::{self, Allocation, Taken};

impl Options {
    /// Runs the job.
    ///
    /// # Errors
    /// Why it cannot run.
    pub fn exec(self) -> anyhow::Result<Code> {
        let env = |name: &str| std::env::var_os(name);
        let dry_run = self.dry_run;
        let (config, taken, notices) = match self.config(&HostInfo::here(&env)) {
            Ok(made) => made,
            Err(error) if error.is_usage() => return Err(Refused(format!("{error}\n\n{TRY_HELP}")).into()),
            Err(error) => return Err(left_for_the_caller(error.into())),
        };
        for notice in notices.into_iter().chain(threads_notice(&config, &env)) {
            // The reader may be gone, but the job must still run.
            let _ = writeln!(stderr(), "note: {notice}");
        }
        if dry_run { plan::show(&config, &taken) } else { start(&config) }
    }

    /// The job, the flags that came from the scheduler, and notices for the user.
    fn config(self, host: &HostInfo<'_>) -> Result<(Config, Vec<Taken>, Vec<String>), ConfigError> {
        let hostfile = self.hostfile(host.env).map(|path| path.to_string_lossy().into_owned());
        let allocation =
            Allocation::here(hostfile.as_deref()).map_err(|error| ConfigError::Clash(error.to_string()))?;
        let mut flags = self.flags(host.env)?;
        let (taken, mut notices) = match allocation {
            Some(found) => scheduler::apply(&found, &mut flags)?,
            None => scheduler::without_job(&flags)?,
        };
        let (config, more) = Config::from_flags(&flags, host)?;
        notices.extend(more);
        Ok((config, taken, notices))
    }
}

const TRY_HELP: &str = "For more information, try '--help'.";

fn start(config: &Config) -> anyhow::Result<Code> {
    match agent::run(config).map_err(left_for_the_caller)? {
        Ended::Succeeded => Ok(Code::Success),
        Ended::Failed => Ok(Code::Failure),
        Ended::Saved => Ok(Code::Saved),
    }
}

/// Records the error where the parent process expects it (torch's `record`, around `main`).
fn left_for_the_caller(error: anyhow::Error) -> anyhow::Error {
    if let Some(path) = std::env::var_os("TORCHELASTIC_ERROR_FILE").filter(|path: &OsString| !path.is_empty())
        && let Err(why) = propagate_agent_error(&error, Path::new(&path))
    {
        return error
            .context(format!("cannot write {} (TORCHELASTIC_ERROR_FILE): {why}", foreign::path(Path::new(&path))));
    }
    error
}
