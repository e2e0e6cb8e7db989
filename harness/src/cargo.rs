//! Runs cargo, and parses its messages for programs: one line of JSON each (`--message-format json`).

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

/// One message, with the fields used here.
#[derive(Deserialize)]
pub(crate) struct Message {
    /// The package that it concerns.
    pub(crate) package_id: Option<String>,
    /// The executable that was built.
    pub(crate) executable: Option<PathBuf>,
    /// The compiled target.
    pub(crate) target: Option<Target>,
    /// The compiler's diagnostic.
    pub(crate) message: Option<Diagnostic>,
}

/// The compiled target.
#[derive(Deserialize)]
pub(crate) struct Target {
    pub(crate) name: String,
}

/// The compiler's diagnostic.
#[derive(Deserialize)]
pub(crate) struct Diagnostic {
    /// `error`, `warning` and others.
    pub(crate) level: String,
    /// The text for people, in several lines.
    pub(crate) rendered: Option<String>,
    /// The places in the source.
    pub(crate) spans: Vec<Span>,
}

/// A place in a source.
#[derive(Deserialize)]
pub(crate) struct Span {
    pub(crate) file_name: String,
    pub(crate) is_primary: bool,
}

impl Message {
    /// The program of this name, if this message reports it.
    pub(crate) fn program(&self, name: &str) -> Option<&Path> {
        self.executable.as_deref().filter(|_| self.target.as_ref().is_some_and(|target| target.name == name))
    }
}

/// Cargo (or the program in `CARGO`) in `folder`, with messages for programs on stdout.
pub(crate) fn command(folder: &Path, words: &[&str]) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(folder).args(words).args(["--quiet", "--message-format", "json"]).stdin(Stdio::null());
    command
}

/// The messages in cargo's stdout; other lines are ignored.
pub(crate) fn messages(stdout: &[u8]) -> Vec<Message> {
    let text = String::from_utf8_lossy(stdout);
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}
