//! The command line as a whole: which subcommands there are. Their options stand beside what they do.

use clap::{Parser, Subcommand};

use crate::exit::Code;
use crate::{course, inject, launch, process, tour, verify};

/// Distributed deep-learning training on libtorch, step by step, and proofs that the steps are right
#[derive(Parser)]
#[command(name = "lockstep", version, arg_required_else_help = true, after_help = crate::exit::HELP)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(Box<launch::Options>),
    Tour(tour::Options),
    Inject(inject::Options),
    Verify(verify::Options),
    Course(course::Options),
    #[command(name = process::TIED, hide = true)]
    Tied(process::Helper),
    #[command(name = process::WARDEN, hide = true)]
    Warden(process::Helper),
}

impl Cli {
    /// Does what was asked for.
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        match self.command {
            Command::Run(options) => options.exec(),
            Command::Tour(options) => options.exec(),
            Command::Inject(options) => options.exec(),
            Command::Verify(options) => options.exec(),
            Command::Course(options) => options.exec(),
            Command::Tied(helper) => helper.exec(process::TIED),
            Command::Warden(helper) => helper.exec(process::WARDEN),
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
