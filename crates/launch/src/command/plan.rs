//! `--dry-run`: prints what would run, as lines of a name and a value.

use std::io::{Write, stdout};

use anyhow::Context;
use lockstep_contract::foreign::escaped;

use crate::config::{Backend, Config, LogBase};
use crate::exit::Code;
use crate::scheduler::Taken;

pub(super) fn show(config: &Config, taken: &[Taken]) -> anyhow::Result<Code> {
    let taken = taken.iter().map(|taken| ("taken", origin(taken)));
    let lines = lines(config).into_iter().chain(taken).map(|(name, value)| format!("{name:<12} {}\n", escaped(&value)));
    stdout().write_all(lines.collect::<String>().as_bytes()).context("cannot print the plan")?;
    Ok(Code::Success)
}

fn lines(config: &Config) -> Vec<(&'static str, String)> {
    let rendezvous = &config.rendezvous;
    let node = match rendezvous.backend {
        Backend::Static { node_rank } => format!(", this is node {node_rank}"),
        Backend::C10d => String::new(),
    };
    let mut lines = vec![
        ("program", config.program.name.clone()),
        ("nodes", config.nodes.to_string()),
        ("workers here", config.local_world_size.to_string()),
        (
            "rendezvous",
            format!("{} at {}{node}, id {}", rendezvous.backend.name(), rendezvous.endpoint, rendezvous.run_id),
        ),
        ("restarts", config.max_restarts.to_string()),
        ("logs", logs(&config.logs.base)),
    ];
    lines.extend((0..config.local_world_size).map(|rank| ("command", command(config, rank))));
    lines
}

/// A flag that came from the scheduler, and which variable or file it came from.
fn origin(taken: &Taken) -> String {
    let value = if taken.value.is_empty() { String::new() } else { format!("={}", taken.value) };
    format!("--{}{value} from {}", taken.flag, taken.from)
}

fn logs(base: &LogBase) -> String {
    match base {
        LogBase::Temporary => "in a temporary folder".to_owned(),
        LogBase::Folder(folder) => format!("in {}", folder.display()),
        LogBase::Nowhere => "none".to_owned(),
    }
}

/// Quoted for a shell.
fn command(config: &Config, local_rank: usize) -> String {
    let args = config.program.args(local_rank);
    let words = std::iter::once(&config.program.file).chain(&args);
    words.map(|word| quoted(&word.to_string_lossy())).collect::<Vec<_>>().join(" ")
}

/// Quoted so that a shell reads it back.
pub fn quoted(word: &str) -> String {
    let safe = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(safe) { word.into() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_words_that_a_shell_would_change() {
        assert_eq!(
            ["--seed=0.7", "a b", "", "it's", "$x", "é"].map(quoted),
            ["--seed=0.7", "'a b'", "''", r"'it'\''s'", "'$x'", "'é'"]
        );
    }
}
