//! `--dry-run`: prints what would run, as lines of a name and a value.

use std::io::{Write, stdout};

use anyhow::Context;
use lockstep_launch::config::{Backend, Config, LogBase};
use lockstep_launch::scheduler::Taken;

use crate::exit::Code;

pub(super) fn show(config: &Config, taken: &[Taken]) -> anyhow::Result<Code> {
    let taken = taken.iter().map(|taken| ("taken", origin(taken)));
    let lines = lines(config).into_iter().chain(taken).map(|(name, value)| format!("{name:<12} {value}\n"));
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

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_what_a_shell_would_split() {
        assert_eq!(
            [quoted("--lr=0.1"), quoted("a b"), quoted(""), quoted("it's"), quoted("$x")],
            ["--lr=0.1", "'a b'", "''", r"'it'\''s'", "'$x'"]
        );
    }
}
