//! Builds a learner's package with cargo.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context;

use crate::cargo::{self, Diagnostic};

/// The result of a build.
pub(super) enum Built {
    /// The program.
    Program(PathBuf),
    /// It does not compile.
    Broken(Vec<CompileError>),
}

/// One error of the compiler.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CompileError {
    /// The file, as cargo names it; `None` for errors without a place.
    pub(super) file: Option<String>,
    /// As formatted by the compiler, in several lines.
    pub(super) text: String,
}

/// The command that builds `package` from the workspace in `folder`.
pub(super) fn command(folder: &Path, package: &str) -> Command {
    cargo::command(folder, &["build", "--package", package])
}

/// Builds a package of the checkout; cargo's own output goes to stderr.
///
/// # Errors
/// cargo cannot be started, or fails without a compiler error.
pub(super) fn build(root: &Path, package: &str) -> anyhow::Result<Built> {
    let mut command = command(root, package);
    let output = command.stderr(Stdio::inherit()).output().context("cannot start cargo: is it on PATH?")?;
    read(&output.stdout, package, output.status.success())
}

/// Extracts the result for `package` from cargo's messages.
///
/// # Errors
/// The build failed, and no message says why.
pub(super) fn read(stdout: &[u8], package: &str, success: bool) -> anyhow::Result<Built> {
    let messages = cargo::messages(stdout);
    if success {
        let program = messages.iter().rev().find_map(|message| message.program(package));
        return Ok(Built::Program(program.with_context(|| format!("cargo built no program {package}"))?.into()));
    }
    let errors: Vec<_> = messages.into_iter().filter_map(|message| error(message.message?)).collect();
    anyhow::ensure!(!errors.is_empty(), "cargo cannot build {package}; see its output above");
    Ok(Built::Broken(errors))
}

fn error(diagnostic: Diagnostic) -> Option<CompileError> {
    let file = diagnostic.spans.into_iter().find(|span| span.is_primary).map(|span| span.file_name);
    (diagnostic.level == "error").then(|| CompileError { file, text: diagnostic.rendered.unwrap_or_default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_program_among_cargos_messages() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"other"},"executable":"/t/other"}
{"reason":"compiler-artifact","target":{"name":"ex-02"},"executable":"/t/ex-02"}
{"reason":"build-finished","success":true}"#;
        let Ok(Built::Program(path)) = read(messages.as_bytes(), "ex-02", true) else { panic!("no program") };
        assert_eq!(path, Path::new("/t/ex-02"));
        assert!(read(b"", "ex-02", true).is_err());
    }

    #[test]
    fn reports_errors_with_their_files() {
        let messages = r#"{"reason":"compiler-message","target":{"name":"ex-02"},"message":{"level":"warning","rendered":"w","spans":[]}}
{"reason":"compiler-message","target":{"name":"ex-02"},"message":{"level":"error","rendered":"mismatched types","spans":[{"file_name":"src/other.rs","is_primary":false},{"file_name":"src/shard.rs","is_primary":true}]}}"#;
        let Ok(Built::Broken(errors)) = read(messages.as_bytes(), "ex-02", false) else { panic!("it is broken") };
        let expected = CompileError { file: Some("src/shard.rs".into()), text: "mismatched types".into() };
        assert_eq!(errors, [expected]);
        assert!(read(b"", "ex-02", false).is_err());
    }
}
