//! Cargo as the commands call it, and the messages that it tells programs: a line of JSON each (`--message-format json`).

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

/// One message, as far as it is read here.
#[derive(Deserialize)]
pub(crate) struct Message {
    /// The package that it is about.
    pub(crate) package_id: Option<String>,
    /// The program that was made.
    pub(crate) executable: Option<PathBuf>,
    /// What was compiled.
    pub(crate) target: Option<Target>,
    /// What the compiler says.
    pub(crate) message: Option<Diagnostic>,
}

/// What was compiled.
#[derive(Deserialize)]
pub(crate) struct Target {
    pub(crate) name: String,
}

/// What the compiler says.
#[derive(Deserialize)]
pub(crate) struct Diagnostic {
    /// `error`, `warning` and others.
    pub(crate) level: String,
    /// As a person reads it, over several lines.
    pub(crate) rendered: Option<String>,
    /// The places that it is about.
    pub(crate) spans: Vec<Span>,
}

/// A place in a source.
#[derive(Deserialize)]
pub(crate) struct Span {
    pub(crate) file_name: String,
    pub(crate) is_primary: bool,
}

impl Message {
    /// The program of this name, if that is what was made.
    pub(crate) fn program(&self, name: &str) -> Option<&Path> {
        self.executable.as_deref().filter(|_| self.target.as_ref().is_some_and(|target| target.name == name))
    }
}

/// Cargo (`CARGO` names another) in `folder`, with messages for programs on stdout.
pub(crate) fn command(folder: &Path, words: &[&str]) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(folder).args(words).args(["--quiet", "--message-format", "json"]).stdin(Stdio::null());
    command
}

/// The messages in what cargo wrote to stdout; other lines are passed over.
pub(crate) fn messages(stdout: &[u8]) -> Vec<Message> {
    let text = String::from_utf8_lossy(stdout);
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}
