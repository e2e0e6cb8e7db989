//! Runs the command, shows what it would run, and is the `main` of a program that is the launcher and nothing else.

use std::ffi::OsString;
use std::io::{Write, stdout};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::{CommandFactory, Parser};
use lockstep_contract::{foreign, warn};

use super::RunOptions;
use super::look_alikes::{self, parse};
use crate::agent::{self, Ended};
use crate::config::{Backend, Config, ConfigError, HostInfo, LogBase, threads_notice};
use crate::exit::{self, Code, Refused};
use crate::report::propagate_agent_error;
use crate::scheduler::{self, Allocation, Taken};

// Not a doc comment: clap would show it as the program's description.
// The command line of `torchrun`: its flags, without a subcommand.
#[derive(Parser)]
struct CommandLine {
    #[command(flatten)]
    options: RunOptions,
}

/// The `main` of a launcher: reads this process's arguments, runs the job, prints an error if there is one, and returns
/// the exit code, as `--help` lists them.
///
/// Call it on the main thread, before anything else: the executable starts itself again as the process that ends what workers have left if
/// this one is killed, and the kernel ends workers with the thread that started them.
pub fn torchrun() -> ExitCode {
    lockstep_process::internal_main()
        .unwrap_or_else(|| exit::main(|| parse::<CommandLine>().options.exec(|| Ok(CommandLine::command()))))
}

impl RunOptions {
    /// Runs the job, or prints the script that completes the `whole` command line.
    ///
    /// # Errors
    /// Why it cannot run.
    pub fn exec(self, whole: impl FnOnce() -> anyhow::Result<clap::Command>) -> anyhow::Result<Code> {
        if let Some(shell) = self.print_completion {
            return shell.print(&whole()?);
        }
        agent::settle().context("cannot handle signals")?;
        let env = |name: &str| std::env::var_os(name);
        let dry_run = self.dry_run;
        let words = self.words().to_vec();
        // The launcher's own, and the program.
        let own: Vec<OsString> = std::env::args_os().skip(1).collect();
        let own = &own[..(own.len() + 1).saturating_sub(words.len())];
        let (config, taken, mut notices) = match self.config(&HostInfo::here(&env)) {
            Ok(made) => made,
            Err(error) if let Some(named) = look_alikes::find(own.iter().map(|word| &**word)) => {
                return Err(Refused(format!("{named} ({error})\n\n{TRY_HELP}")).into());
            }
            Err(error) if error.is_usage() => return Err(Refused(format!("{error}\n\n{TRY_HELP}")).into()),
            Err(error) => return Err(left_for_the_caller(error.into())),
        };
        notices.extend(look_alikes::flag_like(words.iter().skip(1).map(|word| &**word)));
        for notice in notices.into_iter().chain(threads_notice(&config, &env)) {
            warn(&format_args!("note: {notice}"));
        }
        if dry_run { show(&config, &taken) } else { start(&config) }
    }

    /// The job, the flags that came from the scheduler, and notices for the user.
    fn config(self, host: &HostInfo<'_>) -> Result<(Config, Vec<Taken>, Vec<String>), ConfigError> {
        let hostfile = self.hostfile(host.env).map(|path| path.to_string_lossy().into_owned());
        let mut flags = self.flags(host.env)?;
        flags.check_types()?; // before an allocation is looked for
        let allocation =
            Allocation::here(hostfile.as_deref()).map_err(|error| ConfigError::Clash(error.to_string()))?;
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

/// `--dry-run`: prints what would run, as lines of a name and a value.
fn show(config: &Config, taken: &[Taken]) -> anyhow::Result<Code> {
    let taken = taken.iter().map(|taken| ("taken", origin(taken)));
    let lines = lines(config)
        .into_iter()
        .chain(taken)
        .map(|(name, value)| format!("{name:<12} {}\n", foreign::escaped(&value)));
    stdout().write_all(lines.collect::<String>().as_bytes()).context("cannot print the plan")?;
    Ok(Code::Success)
}

fn lines(config: &Config) -> Vec<(&'static str, String)> {
    let rendezvous = &config.rendezvous;
    let node = match rendezvous.backend {
        Backend::Static { node_rank } => format!(", this is --node-rank={node_rank}"),
        Backend::C10d => String::new(),
    };
    let mut lines = vec![
        ("program", config.program.name.clone()),
        ("nodes", config.nodes.to_string()),
        ("workers here", config.local_world_size.to_string()),
        (
            "rendezvous",
            format!("{} at {}{node}, id {}", rendezvous.backend.name(), rendezvous.endpoint, rendezvous.run_id),
        ),
        ("restarts", config.max_restarts.to_string()),
        ("logs", logs(&config.logs.base)),
    ];
    lines.extend((0..config.local_world_size).map(|rank| ("command", command(config, rank))));
    lines
}

/// A flag that came from the scheduler, and which variable or file it came from.
fn origin(taken: &Taken) -> String {
    let value = if taken.value.is_empty() { String::new() } else { format!("={}", taken.value) };
    format!("--{}{value} from {}", taken.flag, taken.from)
}

fn logs(base: &LogBase) -> String {
    match base {
        LogBase::Temporary => "in a temporary folder".to_owned(),
        LogBase::Folder(folder) => format!("in {}", folder.display()),
        LogBase::Nowhere => "none".to_owned(),
    }
}

/// Quoted for a shell.
fn command(config: &Config, local_rank: usize) -> String {
    let args = config.program.args(local_rank);
    let words = std::iter::once(&config.program.file).chain(&args);
    words.map(|word| quoted(&word.to_string_lossy())).collect::<Vec<_>>().join(" ")
}

/// Quoted so that a shell reads it back.
pub fn quoted(word: &str) -> String {
    let safe = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(safe) { word.into() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_words_that_a_shell_would_change() {
        assert_eq!(
            ["--seed=0.7", "a b", "", "it's", "$x", "é"].map(quoted),
            ["--seed=0.7", "'a b'", "''", r"'it'\''s'", "'$x'", "'é'"]
        );
    }
}
