//! The peers: where Python with PyTorch is, if it is at hand.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::ValueEnum;
use lockstep_contract::foreign::quotation;

/// The variable that names a Python.
const PYTHON: &str = "LOCKSTEP_PYTHON";
/// Where set-up puts one, in the checkout.
const IN_CHECKOUT: &str = ".libtorch/python/bin/python";
/// Prints a package's version without importing it, which takes seconds.
const VERSION: &str = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))";

/// What takes turns with Lockstep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Peer {
    /// Python with PyTorch: torchrun, libtorch's store, the same collectives, DDP, torch.save, torchvision's loader
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
    /// [`NotAtHand`]
    pub(super) fn find() -> Result<Self, NotAtHand> {
        let program = std::env::var_os(PYTHON).filter(|path| !path.is_empty()).map(PathBuf::from);
        let program = program.or_else(of_checkout).unwrap_or_else(|| "python3".into());
        let missing =
            |why| NotAtHand(format!("{} has no PyTorch ({why}); {PYTHON} can name another", program.display()));
        let version = version(&program, "torch").map_err(missing)?;
        Ok(Python { program, version })
    }

    /// This Python, if it has torchvision as well.
    ///
    /// # Errors
    /// [`NotAtHand`]
    pub(super) fn with_torchvision(self) -> Result<Self, NotAtHand> {
        let missing = |why| NotAtHand(format!("{} has no torchvision ({why})", self.program.display()));
        version(&self.program, "torchvision").map_err(missing)?;
        Ok(self)
    }
}

/// The peer lacks something. What it would do is not measured.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct NotAtHand(String);

/// That of the checkout in which this program was built.
fn of_checkout() -> Option<PathBuf> {
    let this = std::env::current_exe().ok()?;
    this.ancestors().map(|folder| folder.join(IN_CHECKOUT)).find(|python| python.is_file())
}

fn version(program: &Path, package: &str) -> Result<String, String> {
    let mut command = Command::new(program);
    command.args(["-c", VERSION, package]).stdin(Stdio::null());
    let output = command.output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(quotation(text.lines().last().unwrap_or("no reason was given")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_the_reason_of_a_python_without_pytorch() {
        assert!(version(Path::new("/no/such/python"), "torch").unwrap_err().contains("No such file"));
        let dir = tempfile::tempdir().unwrap();
        let python = dir.path().join("python");
        std::fs::write(&python, "#!/bin/sh\necho Traceback >&2\necho 'no torch' >&2\nexit 1\n").unwrap();
        let run = |words: &[&str]| Command::new("chmod").args(words).arg(&python).status().unwrap();
        assert!(run(&["+x"]).success());
        assert_eq!(version(&python, "torch").unwrap_err(), "no torch");
        let python = Python { program: python, version: String::new() };
        let error = python.with_torchvision().unwrap_err().to_string();
        assert!(error.ends_with("/python has no torchvision (no torch)"), "{error}");
    }
}
