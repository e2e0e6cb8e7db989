//! The peers: where Python with PyTorch is, if it is at hand.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::ValueEnum;

/// The variable that names a Python.
const PYTHON: &str = "LOCKSTEP_PYTHON";
/// Where set-up puts one, in the checkout.
const IN_CHECKOUT: &str = ".libtorch/python/bin/python";
/// Prints PyTorch's version without importing it, which takes seconds.
const VERSION: &str = "import importlib.metadata; print(importlib.metadata.version('torch'))";

/// What takes turns with Lockstep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Peer {
    /// Python with PyTorch: torchrun, libtorch's store, the same collectives
    Python,
}

/// A Python with PyTorch.
#[derive(Clone, Debug)]
pub(super) struct Python {
    pub(super) program: PathBuf,
    /// Of PyTorch.
    pub(super) version: String,
}

impl Python {
    /// The Python of `LOCKSTEP_PYTHON`, of set-up, or the active one; the first of these that exists must have PyTorch.
    ///
    /// # Errors
    /// It has none, as a sentence for people.
    pub(super) fn find() -> Result<Self, String> {
        let program = std::env::var_os(PYTHON).filter(|path| !path.is_empty()).map(PathBuf::from);
        let program = program.or_else(of_checkout).unwrap_or_else(|| "python3".into());
        let version = version(&program)
            .map_err(|why| format!("{} has no PyTorch ({why}); {PYTHON} can name another", program.display()))?;
        Ok(Python { program, version })
    }
}

/// That of the checkout in which this program was built.
fn of_checkout() -> Option<PathBuf> {
    let this = std::env::current_exe().ok()?;
    this.ancestors().map(|folder| folder.join(IN_CHECKOUT)).find(|python| python.is_file())
}

fn version(program: &Path) -> Result<String, String> {
    let mut command = Command::new(program);
    command.args(["-c", VERSION]).stdin(Stdio::null());
    let output = command.output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(text.lines().last().unwrap_or("no reason was given").to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_the_reason_of_a_python_without_pytorch() {
        assert!(version(Path::new("/no/such/python")).unwrap_err().contains("No such file"));
        let dir = tempfile::tempdir().unwrap();
        let python = dir.path().join("python");
        std::fs::write(&python, "#!/bin/sh\necho Traceback >&2\necho 'no torch' >&2\nexit 1\n").unwrap();
        let run = |words: &[&str]| Command::new("chmod").args(words).arg(&python).status().unwrap();
        assert!(run(&["+x"]).success());
        assert_eq!(version(&python).unwrap_err(), "no torch");
    }
}
