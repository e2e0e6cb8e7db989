//! Finds the checkout of the course, and the programs that were built in it. [`cargo`] builds there.

#![warn(clippy::print_stdout, clippy::print_stderr)] // they panic where the reader has gone: `report::Screen` prints

pub mod cargo;

use std::path::{Path, PathBuf};

use anyhow::Context;
use lockstep_contract::is_checkout;
use lockstep_launch::exit::Refused;

/// The checkout of the course: the one that contains the current folder, otherwise the one in which this program was built.
pub fn checkout() -> anyhow::Result<PathBuf> {
    let begins = [std::env::current_dir().ok(), std::env::current_exe().ok()];
    let found = begins.iter().flatten().find_map(|begin| checkout_around(begin));
    found.map(Into::into).ok_or_else(|| needs_checkout().into())
}

/// The checkout that contains this file or folder.
pub fn checkout_around(path: &Path) -> Option<&Path> {
    path.ancestors().find(|folder| is_checkout(folder))
}

/// What this command needs and does not have.
fn needs_checkout() -> Refused {
    let words: Vec<_> = std::env::args().skip(1).take_while(|word| !word.starts_with('-')).take(2).collect();
    let command = words.join(" ");
    Refused(format!(
        "`lockstep {command}` needs a checkout of the course: unpack lockstep-{}.tar.gz of the release, and call \
         `scripts/run.sh {command}` there",
        env!("CARGO_PKG_VERSION")
    ))
}

/// The program `name` in the folder of this executable.
pub fn program_beside(name: &str) -> anyhow::Result<PathBuf> {
    // Linux returns the file itself here, not the link through which it was started.
    let this = std::env::current_exe().context("cannot find this program's own path")?;
    let path = this.with_file_name(name);
    if path.is_file() {
        return Ok(path);
    }
    checkout()?;
    let folder = this.parent().unwrap_or(&this).display();
    // Only labs are default members: not the programs with the course's answers, and not the ranks of benches.
    let package = if name.starts_with("lab-") { String::new() } else { format!(" --package {name}") };
    Err(Refused(format!("cannot find the program {name} in {folder}: build it with `cargo build{package}`")).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_command_that_builds_a_missing_program() {
        for (name, built_with) in
            [("lab-99-nothing", "`cargo build`"), ("lockstep-nothing", "`cargo build --package lockstep-nothing`")]
        {
            let message = program_beside(name).unwrap_err().downcast::<Refused>().unwrap().to_string();
            assert!(message.contains(&format!("{name} in /")) && message.ends_with(built_with), "{message}");
        }
    }
}
