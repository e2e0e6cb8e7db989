//! torchrun's flags as texts, before any check, and the source of each text.
//!
//! The command line fills this in; [`Config::from_flags`](super::Config::from_flags) interprets it. Names and defaults
//! are torchrun's (torch/distributed/run.py). The variable `PET_<NAME>` replaces a flag that was not given
//! (torch/distributed/argparse_util.py).

use std::ffi::OsString;
use std::fmt;

use lockstep_contract::foreign;

/// How variables are read: `std::env::var_os`, or a test's own function.
pub type Env<'a> = &'a dyn Fn(&str) -> Option<OsString>;

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
}

impl fmt::Display for Given {
    /// In the user's notation: `--nnodes=2`, or `PET_NNODES=2 (in place of --nnodes)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (flag, text) = (self.flag, foreign::escaped(&self.text));
        match self.source {
            Source::Allocation => write!(f, "--{flag}={text} (from the job that this agent was started in)"),
            Source::Variable => write!(f, "{}={text} (in place of --{flag})", variable(flag)),
            _ => write!(f, "--{flag}={text}"),
        }
    }
}

/// The variable that stands in for a flag.
pub fn variable(flag: &str) -> String {
    format!("PET_{}", flag.to_ascii_uppercase().replace('-', "_"))
}
