//! The command line as a whole: which subcommands there are. Their options stand beside what they do.

use clap::{Parser, Subcommand};

use crate::exit::Code;
use crate::{process, tour};

/// Distributed deep-learning training on libtorch, step by step, and proofs that the steps are right
#[derive(Parser)]
#[command(name = "lockstep", version, arg_required_else_help = true, after_help = crate::exit::HELP)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Tour(tour::Options),
    #[command(name = process::TIED, hide = true)]
    Tied(process::Tied),
}

impl Cli {
    /// Does what was asked for.
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        match self.command {
            Command::Tour(options) => options.exec(),
            Command::Tied(options) => options.exec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_of_the_command_line_is_sound() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }
}
