//! `--print-completion`: a script that completes a command line in a shell.

use std::io::{Write, stdout};

use anyhow::Context;
use clap::{Command, ValueEnum};
use clap_complete::{Shell as Generator, generate};

use crate::exit::Code;

/// A shell that scripts are made for. torchrun knows tcsh instead of fish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)] // the shells' own names
pub enum Shell {
    Bash,
    Zsh,
    Fish,
}

impl Shell {
    /// Prints the script for this command line.
    ///
    /// # Errors
    /// When it cannot be printed.
    pub fn print(self, command: &Command) -> anyhow::Result<Code> {
        stdout().write_all(&self.script(command)).context("cannot print the script")?;
        Ok(Code::Success)
    }

    /// The script, without subcommands that the help page does not list.
    fn script(self, command: &Command) -> Vec<u8> {
        let name = command.get_name().to_owned();
        let listed = command.get_subcommands().filter(|inner| !inner.is_hide_set()).cloned();
        let arguments = command.get_arguments().cloned();
        // The generators take the program's name from `generate`; this one only names states in the script.
        let mut shown = Command::new("lockstep").args(arguments).subcommands(listed);
        let mut script = Vec::new();
        generate(self.generator(), &mut shown, name, &mut script);
        script
    }

    fn generator(self) -> Generator {
        match self {
            Shell::Bash => Generator::Bash,
            Shell::Zsh => Generator::Zsh,
            Shell::Fish => Generator::Fish,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Arg;

    use super::*;

    #[test]
    fn completes_flags_and_listed_subcommands_only() {
        let run = Command::new("run").arg(Arg::new("nnodes").long("nnodes").alias("n_nodes"));
        let command = Command::new("x").subcommands([run, Command::new("x-rank").hide(true)]);
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = String::from_utf8(shell.script(&command)).unwrap();
            assert!(script.contains("nnodes"), "{script}");
            assert!(["x-rank", "n_nodes"].iter().all(|word| !script.contains(word)), "{script}");
        }
    }
}
