//! torchrun's flags as texts, before any check, with the source of each text; how their values are read; and the errors about them.
//!
//! The command line fills this in; [`Config::from_flags`](super::Config::from_flags) interprets it. Names and defaults
//! are torchrun's (torch/distributed/run.py). The variable `PET_<NAME>` replaces a flag that was not given
//! (torch/distributed/argparse_util.py).

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use lockstep_contract::foreign;

use super::program::{Env, ProgramError};

/// All values of the command line of `lockstep run`.
#[derive(Clone, Debug)]
#[allow(missing_docs)] // the fields are torchrun's flags
pub struct Flags {
    pub nnodes: Given,
    pub nproc_per_node: Given,
    pub rdzv_backend: Given,
    pub rdzv_endpoint: Given,
    pub rdzv_id: Given,
    pub rdzv_conf: Given,
    pub standalone: bool,
    pub max_restarts: Given,
    pub monitor_interval: Given,
    pub start_method: Given,
    pub event_log_handler: Given,
    pub role: Given,
    pub module: bool,
    pub no_python: bool,
    pub run_path: bool,
    pub log_dir: Option<PathBuf>,
    pub redirects: Given,
    pub tee: Given,
    pub log_line_prefix_template: Given,
    pub local_ranks_filter: Given,
    pub duplicate_stdout_filters: Given,
    pub duplicate_stderr_filters: Given,
    pub node_rank: Given,
    pub master_addr: Given,
    pub master_port: Given,
    pub local_addr: Given,
    pub logs_specs: Option<String>,
    pub numa_binding: Option<String>,
    pub signals_to_handle: Given,
    pub shutdown_timeout: Given,
    pub virtual_local_rank: bool,
    /// Of `torch.distributed.launch`: workers read their local rank from the environment.
    pub use_env: bool,
    /// As `torch.distributed.launch` without `--use-env`: workers get their local rank as an argument, too.
    pub pass_local_rank: bool,
    /// Not torchrun's: signals on which workers save a snapshot before they end.
    pub snapshot_on: Given,
    /// Not torchrun's: signals that are passed on to all workers.
    pub forward_signals: Given,
    /// Not torchrun's: what carries the workers' collectives; empty for what their environment says.
    pub backend: Given,
    /// Not torchrun's: seconds from now until the job ends.
    pub time_limit: Given,
    /// Not torchrun's: seconds before that end at which the workers save a snapshot and end.
    pub save_before_limit: Given,
    /// Not torchrun's: seconds that agents wait for each other at the end.
    pub exit_barrier_timeout: Given,
    /// Not torchrun's: keep a temporary log folder.
    pub keep_logs: bool,
    /// Not torchrun's: the file of a recording.
    pub record: Option<PathBuf>,
    /// Not torchrun's: stacks of the ranks after a hang.
    pub stacks: Given,
    /// Not torchrun's: live status on a terminal.
    pub status: Given,
    /// Not torchrun's: a prefix for each line that names its writer.
    pub prefix: Given,
    /// The script, module or program.
    pub program: OsString,
    /// Its arguments.
    pub args: Vec<OsString>,
}

impl Flags {
    /// Checks the types and choices of torchrun's own flags, before anything else is looked at: its parser does so, and exits with 2.
    ///
    /// # Errors
    /// [`ConfigError::NotOfType`], for the first that is malformed.
    pub fn check_types(&self) -> Result<(), ConfigError> {
        [&self.max_restarts, &self.node_rank, &self.master_port]
            .into_iter()
            .try_for_each(|given| whole(given).map(drop))?;
        [&self.monitor_interval, &self.shutdown_timeout].into_iter().try_for_each(|given| number(given).map(drop))?;
        choice(&self.start_method, &START_METHODS.map(|name| (name, ())), "spawn, fork or forkserver")
    }
}

/// The choices of `--start-method`.
const START_METHODS: [&str; 3] = ["spawn", "fork", "forkserver"];

/// A switch: on if the command line has it, or if the variable is an integer other than 0.
///
/// # Errors
/// [`ConfigError::NotOfType`] when the variable is not a number.
pub fn switch(flag: &'static str, command_line: bool, env: Env<'_>) -> Result<bool, ConfigError> {
    let Some(value) = env(&variable(flag)).filter(|_| !command_line) else { return Ok(command_line) };
    let number = value.to_str().and_then(|text| text.trim().parse::<i64>().ok());
    let given = || Given { flag, text: value.to_string_lossy().into_owned(), source: Source::Variable };
    number.map(|number| number != 0).ok_or_else(|| ConfigError::NotOfType { given: given(), expected: "0 or 1" })
}

/// A path of the command line, otherwise of the variable. An empty path counts as missing.
pub fn path(flag: &'static str, command_line: Option<PathBuf>, env: Env<'_>) -> Option<PathBuf> {
    let path = command_line.or_else(|| env(&variable(flag)).map(PathBuf::from));
    path.filter(|path| path.as_os_str() != OsStr::new(""))
}

/// Why the flags do not describe a job. Nothing has been started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The text has the wrong type: torchrun exits with 2.
    #[error("{given}: expected {expected}")]
    NotOfType {
        /// The flag and its text.
        given: Given,
        /// What the flag accepts.
        expected: &'static str,
    },
    /// The text has an invalid value: torchrun exits with 1.
    #[error("{given}: {why}")]
    NotAllowed {
        /// The flag and its text.
        given: Given,
        /// What is wrong, and what the flag accepts.
        why: String,
    },
    /// Flags contradict each other.
    #[error("{0}")]
    Clash(String),
    /// The program does not exist, or nothing can run it.
    #[error(transparent)]
    Program(#[from] ProgramError),
}

impl ConfigError {
    /// Returns true if the command line itself is malformed (exit code 2), false if its values are invalid (1).
    pub fn is_usage(&self) -> bool {
        matches!(self, ConfigError::NotOfType { .. })
    }

    pub(super) fn not_allowed(given: &Given, why: impl Into<String>) -> Self {
        ConfigError::NotAllowed { given: given.clone(), why: why.into() }
    }
}

/// The text of one flag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// The flag's name without leading dashes, such as `nproc-per-node`.
    pub flag: &'static str,
    /// Its value.
    pub text: String,
    /// The source of the value.
    pub source: Source,
}

/// The source of a flag's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The command line.
    CommandLine,
    /// The variable `PET_<NAME>`.
    Variable,
    /// Another variable, which torchrun reads, too.
    OtherVariable(&'static str),
    /// The scheduler, MPI's launcher or a host file.
    Allocation,
    /// The default.
    Default,
}

impl Given {
    /// The command line's text, otherwise the variable's, otherwise the default.
    pub fn pick(flag: &'static str, command_line: Option<String>, default: &str, env: Env<'_>) -> Self {
        let variable = || env(&variable(flag)).map(|value| (value.to_string_lossy().into_owned(), Source::Variable));
        let (text, source) = command_line
            .map(|text| (text, Source::CommandLine))
            .or_else(variable)
            .unwrap_or_else(|| (default.to_owned(), Source::Default));
        Given { flag, text, source }
    }

    /// The same, unless it is empty or the default: then the text of this variable, if it has one.
    #[must_use]
    pub fn or_variable(self, name: &'static str, env: Env<'_>) -> Self {
        let text =
            env(name).filter(|text| !text.is_empty() && (self.text.is_empty() || self.source == Source::Default));
        match text {
            Some(text) => {
                Given { text: text.to_string_lossy().into_owned(), source: Source::OtherVariable(name), ..self }
            }
            None => self,
        }
    }
}

impl fmt::Display for Given {
    /// In the user's notation: `--nnodes=2`, or `PET_NNODES=2 (in place of --nnodes)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (flag, text) = (self.flag, foreign::escaped(&self.text));
        match self.source {
            Source::Allocation => write!(f, "--{flag}={text} (from the job that this agent was started in)"),
            Source::Variable => write!(f, "{}={text} (in place of --{flag})", variable(flag)),
            Source::OtherVariable(name) => write!(f, "{name}={text} (in place of --{flag})"),
            _ => write!(f, "--{flag}={text}"),
        }
    }
}

/// The variable that stands in for a flag.
pub fn variable(flag: &str) -> String {
    format!("PET_{}", flag.to_ascii_uppercase().replace('-', "_"))
}

pub(super) fn whole(given: &Given) -> Result<i64, ConfigError> {
    let number = without_underscores(&given.text).parse();
    number.map_err(|_| ConfigError::NotOfType { given: given.clone(), expected: "a whole number" })
}

fn number(given: &Given) -> Result<f64, ConfigError> {
    let number = without_underscores(&given.text).parse();
    number.map_err(|_| ConfigError::NotOfType { given: given.clone(), expected: "a number of seconds" })
}

/// The text of a number. Python, in which torchrun reads it, allows spaces around it and an underscore between two digits.
fn without_underscores(text: &str) -> String {
    let text = text.trim();
    let digit = |at: Option<usize>| at.and_then(|at| text.as_bytes().get(at)).is_some_and(u8::is_ascii_digit);
    let between = |at: usize| digit(at.checked_sub(1)) && digit(Some(at + 1));
    text.char_indices().filter(|(at, c)| *c != '_' || !between(*at)).map(|(_, c)| c).collect()
}

/// Seconds, possibly with a fraction, at most ten years, so that no sum overflows a clock.
pub(super) fn seconds(given: &Given) -> Result<Duration, ConfigError> {
    let number = number(given)?;
    if !(0.0..=315_360_000.0).contains(&number) {
        return Err(ConfigError::not_allowed(given, "expected seconds from 0 to 315360000"));
    }
    Ok(Duration::from_secs_f64(number))
}

pub(super) fn seconds_if_given(given: &Given) -> Result<Option<Duration>, ConfigError> {
    if given.source == Source::Default { Ok(None) } else { seconds(given).map(Some) }
}

pub(super) fn choice<T: Copy>(given: &Given, known: &[(&str, T)], expected: &'static str) -> Result<T, ConfigError> {
    let found = known.iter().find(|(name, _)| *name == given.text).map(|(_, value)| *value);
    found.ok_or_else(|| ConfigError::NotOfType { given: given.clone(), expected })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(name: &str) -> Option<OsString> {
        let values =
            [("PET_NPROC_PER_NODE", "3"), ("PET_STANDALONE", "1"), ("PET_MODULE", "0"), ("PET_RUN_PATH", "yes")];
        values.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
    }

    #[test]
    fn the_command_line_overrides_the_variable_and_that_overrides_the_default() {
        let from_line = Given::pick("nproc-per-node", Some("2".into()), "1", &env);
        assert_eq!((from_line.text.as_str(), from_line.source), ("2", Source::CommandLine));
        let from_variable = Given::pick("nproc-per-node", None, "1", &env);
        assert_eq!((from_variable.text.as_str(), from_variable.source), ("3", Source::Variable));
        assert_eq!(from_variable.to_string(), "PET_NPROC_PER_NODE=3 (in place of --nproc-per-node)");
        let default = Given::pick("nnodes", None, "1:1", &env);
        assert_eq!((default.to_string().as_str(), default.source), ("--nnodes=1:1", Source::Default));
    }

    #[test]
    fn another_variable_counts_where_neither_the_flag_nor_its_own_variable_has_a_text() {
        let other = |name: &str| (name == "OTHER").then(|| "7".into());
        let given = |command_line: Option<&str>, env: Env<'_>| {
            Given::pick("x-timeout", command_line.map(str::to_owned), "30", env).or_variable("OTHER", env)
        };
        assert_eq!(given(None, &other).to_string(), "OTHER=7 (in place of --x-timeout)");
        assert_eq!(given(Some(""), &other).text, "7");
        assert_eq!(given(Some("5"), &other).text, "5");
        assert_eq!((given(None, &|_| Some("".into())).text, given(None, &|_| None).text), ("".into(), "30".into()));
        let own = |name: &str| Some(if name == "OTHER" { "7" } else { "6" }.into());
        assert_eq!(given(None, &own).to_string(), "PET_X_TIMEOUT=6 (in place of --x-timeout)");
    }

    #[test]
    fn switches_accept_only_numbers() {
        assert!(switch("standalone", false, &env).unwrap());
        assert!(!switch("module", false, &env).unwrap());
        assert!(switch("module", true, &env).unwrap());
        assert!(!switch("no-python", false, &env).unwrap());
        assert!(switch("run-path", true, &env).unwrap());
        let error = switch("run-path", false, &env).unwrap_err();
        assert!(error.is_usage());
        assert_eq!(error.to_string(), "PET_RUN_PATH=yes (in place of --run-path): expected 0 or 1");
    }

    #[test]
    fn an_empty_path_counts_as_missing() {
        assert_eq!(path("log-dir", Some("".into()), &|_| None), None);
        assert_eq!(path("log-dir", None, &|_| Some("/x".into())), Some("/x".into()));
    }
}
