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

/// A script; the words are those of a shell, split at blanks outside single quotes.
fn script(words: &str) -> String {
    let (mut all, mut quoted) = (vec![String::new()], false);
    for sign in words.chars() {
        match sign {
            '\'' => quoted = !quoted,
            ' ' if !quoted => all.push(String::new()),
            _ => all.last_mut().unwrap().push(sign),
        }
    }
    render(&all.iter().map(String::as_str).collect::<Vec<_>>()).code(0).out
}

/// The script that a script starts on other nodes.
fn agent(script: &str) -> Option<&str> {
    let (_, rest) = script.split_once("<<'AGENT'\n")?;
    Some(rest.split_once("\nAGENT\n").unwrap().0)
}
