//! Hidden subcommands that start programs which must die with their parent, or be confined. [`lockstep_process`]
//! implements both.

use std::ffi::OsString;

use clap::Args;
use lockstep_grading::learner::help;

use crate::exit::Code;

pub(crate) use lockstep_grading::runner::CONFINED;
pub(crate) use lockstep_process::{DIES_WITH_PARENT, REAPER, Signals};

/// What a hidden subcommand was called with
#[derive(Args)]
pub(crate) struct Helper {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

impl Helper {
    /// Runs the hidden subcommand `name`. Returns from [`TIED`] and [`CONFINED`] only if the program could not be started.
    pub(crate) fn exec(&self, name: &str) -> anyhow::Result<Code> {
        let done = help(name, &self.args).unwrap_or_else(|| anyhow::bail!("there is no subcommand {name}"));
        done.map(|()| if name == DIES_WITH_PARENT || name == CONFINED { Code::Failure } else { Code::Success })
    }
}
