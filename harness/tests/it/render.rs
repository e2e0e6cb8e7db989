//! `lockstep render`: the scripts that it writes, read by people (insta), by shellcheck and by bash.
//!
//! What runs here is real bash, `lockstep run` and, where they are installed, Slurm (on a cluster in namespaces) and Open MPI. pbsdsh
//! and ssh are simulated: small programs that run the command here, without the caller's variables.

mod check;
mod running;
mod scripts;
mod slurm;

use std::process::Command;

use crate::running::{Ended, ended};

fn render(words: &[&str]) -> Ended {
    ended(Command::new(assert_cmd::cargo::cargo_bin!("lockstep")).arg("render").args(words))
}

/// A script; the words are those of a shell, split at blanks.
fn script(words: &str) -> String {
    render(&words.split(' ').collect::<Vec<_>>()).code(0).out
}

/// The script that a script starts on other nodes.
fn agent(script: &str) -> Option<&str> {
    let (_, rest) = script.split_once("<<'AGENT'\n")?;
    Some(rest.split_once("\nAGENT\n").unwrap().0)
}
