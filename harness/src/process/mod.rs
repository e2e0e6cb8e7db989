//! The hidden subcommands by which programs are started with a leash. The leash itself is [`lockstep_launch::process`]'s.

use std::ffi::OsString;

use clap::Args;
use lockstep_grading::learner::help;

use crate::exit::Code;

pub(crate) use lockstep_grading::runner::CONFINED;
pub(crate) use lockstep_launch::process::{Signals, TIED, WARDEN, tied};

/// What a hidden subcommand was called with
#[derive(Args)]
pub(crate) struct Helper {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

impl Helper {
    /// Does what the subcommand `name` is for. Comes back from [`TIED`] and [`CONFINED`] only if the program could not be started.
    pub(crate) fn exec(&self, name: &str) -> anyhow::Result<Code> {
        let done = help(name, &self.args).unwrap_or_else(|| anyhow::bail!("there is no subcommand {name}"));
        done.map(|()| if name == TIED || name == CONFINED { Code::Failure } else { Code::Success })
    }
}
