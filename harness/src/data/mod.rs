//! `lockstep data`: makes, shows, checks and fetches the files of data sets. Reads them without libtorch, by `lockstep-datafiles`.

mod check;
mod fetch;
mod look;
mod make;
mod prepare;
mod set;

use clap::{Args, Subcommand};

use crate::exit::Code;

/// Make, look at, check and fetch the files of data sets
#[derive(Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Make(make::Options),
    Look(look::Options),
    Check(check::Options),
    Fetch(fetch::Options),
    Prepare(prepare::Options),
}

impl Options {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        match self.command {
            Command::Make(options) => options.exec(),
            Command::Look(options) => options.exec(),
            Command::Check(options) => options.exec(),
            Command::Fetch(options) => options.exec(),
            Command::Prepare(options) => options.exec(),
        }
    }
}
