//! `--print-completion`: a script that completes a command line in a shell.

use std::collections::BTreeSet;
use std::io::{Write, stdout};

use anyhow::Context;
use clap::{Arg, Command, ValueEnum};
use clap_complete::{Shell as Generator, generate};

use crate::exit::Code;

/// A shell that scripts are made for: torchrun's three, and fish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)] // the shells' own names
pub enum Shell {
    Bash,
    Zsh,
    Tcsh,
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
        let generator = match self {
            Shell::Bash => Generator::Bash,
            Shell::Zsh => Generator::Zsh,
            Shell::Fish => Generator::Fish,
            Shell::Tcsh => return tcsh(&name, command).into_bytes(),
        };
        // The generators take the program's name from `generate`; this one only names states in the script.
        let mut shown = Command::new("lockstep").args(arguments).subcommands(listed);
        let mut script = Vec::new();
        generate(generator, &mut shown, name, &mut script);
        script
    }
}

/// tcsh's `complete` takes words: the subcommands as the first, and the flags of all wherever one begins with dashes.
fn tcsh(name: &str, command: &Command) -> String {
    let listed: Vec<&Command> = command.get_subcommands().filter(|inner| !inner.is_hide_set()).collect();
    let flags = listed.iter().copied().chain([command]).flat_map(Command::get_arguments).filter_map(Arg::get_long);
    let flags: BTreeSet<&str> = flags.collect();
    let words = |words: Vec<&str>| words.join(" ");
    let first = words(listed.iter().map(|inner| inner.get_name()).collect());
    let first = if first.is_empty() { String::new() } else { format!(" 'p/1/({first})/'") };
    format!("complete {name} 'c/--/({})/'{first} 'p/*/f/'\n", words(flags.into_iter().collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completes_flags_and_listed_subcommands_only() {
        let run = Command::new("run").arg(Arg::new("nnodes").long("nnodes").alias("n_nodes"));
        let command = Command::new("x").subcommands([run, Command::new("x-rank").hide(true)]);
        for shell in [Shell::Bash, Shell::Zsh, Shell::Tcsh, Shell::Fish] {
            let script = String::from_utf8(shell.script(&command)).unwrap();
            assert!(script.contains("nnodes"), "{script}");
            assert!(["x-rank", "n_nodes"].iter().all(|word| !script.contains(word)), "{script}");
        }
    }
}
