//! The Python with PyTorch that runs answers in Python, the peer of benches, and lab 06's program in a tour without a checkout.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use lockstep_contract::foreign::quotation;

/// The variable that names a Python.
const PYTHON: &str = "LOCKSTEP_PYTHON";
/// Where set-up puts one, in the checkout: scripts/lib/arch.sh.
const IN_CHECKOUT: &str =
    if cfg!(target_arch = "aarch64") { ".libtorch/aarch64/python/bin/python" } else { ".libtorch/python/bin/python" };
/// Prints a package's version without importing it, which takes seconds.
const VERSION: &str = "\
import importlib.metadata as packages, sys
try: print(packages.version(sys.argv[1]))
except packages.PackageNotFoundError: sys.exit(f'`{sys.executable} -m pip install {sys.argv[1]}` installs it')
";

/// Prints where a Python has its own files and packages: its folders, and what links in them lead to.
const FOLDERS: &str = "\
import os, sys
folders = {sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(os.path.realpath(sys.executable)), *filter(None, sys.path)}
folders |= {os.path.join(folder, name) for folder in sys.path if os.path.isdir(folder) for name in os.listdir(folder)
            if os.path.islink(os.path.join(folder, name))}
folders |= set(filter(None, os.environ.get('LD_LIBRARY_PATH', '').split(':')))
print(*{os.path.realpath(folder) for folder in folders} - {'/'}, sep='\\n')";

/// A Python with PyTorch.
#[derive(Clone, Debug)]
pub struct Python {
    pub program: PathBuf,
    /// PyTorch's version.
    pub version: String,
}

/// The oldest PyTorch for which the runtime of answers in Python is made.
const OLDEST: (u32, u32) = (2, 4);

impl Python {
    /// The Python that `LOCKSTEP_PYTHON` names; without the variable, the first of these that has PyTorch: the one of the environment in
    /// which this program is installed, that of set-up, the first in `PATH`.
    pub fn find() -> Result<Self, PythonMissing> {
        // Each look starts an interpreter.
        static FOUND: OnceLock<Result<Python, PythonMissing>> = OnceLock::new();
        FOUND.get_or_init(Self::look).clone()
    }

    fn look() -> Result<Self, PythonMissing> {
        let chosen = std::env::var_os(PYTHON).filter(|path| !path.is_empty()).map(PathBuf::from);
        let known = || of_this_environment().into_iter().chain(of_checkout()).chain([PathBuf::from("python3")]);
        Self::first(&chosen.map_or_else(|| known().collect(), |chosen| vec![chosen]))
    }

    /// As [`find`](Self::find), if that PyTorch can run answers.
    ///
    /// Errors: [`PythonMissing`], also if its PyTorch is older than 2.4.
    pub fn for_answers() -> Result<Self, PythonMissing> {
        let python = Self::find()?;
        let mut numbers = python.version.split('.').map(|number| number.parse().unwrap_or(0));
        if (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= OLDEST {
            return Ok(python);
        }
        let (program, version) = (python.program.display(), &python.version);
        Err(PythonMissing(format!("{program} has PyTorch {version}, and 2.4 is needed; {PYTHON} can name another")))
    }

    /// The folders without which it cannot import PyTorch.
    ///
    /// # Errors
    /// [`PythonMissing`] if it cannot be asked.
    pub fn folders(&self) -> Result<Vec<PathBuf>, PythonMissing> {
        let text = said(Command::new(&self.program).args(["-c", FOLDERS]));
        let text = text.map_err(|why| PythonMissing(format!("{}: {why}", self.program.display())))?;
        Ok(text.lines().map(PathBuf::from).collect())
    }

    fn first(programs: &[PathBuf]) -> Result<Self, PythonMissing> {
        let mut missing = Vec::new();
        for program in programs {
            match version(program, "torch") {
                Ok(version) => return Ok(Python { program: program.clone(), version }),
                // Two names of one interpreter give one reason.
                Err(why) if missing.iter().any(|(_, known)| *known == why) => {}
                Err(why) => missing.push((program, why)),
            }
        }
        let missing = missing.iter().map(|(program, why)| format!("{} has no PyTorch ({why})", program.display()));
        Err(PythonMissing(format!("{}; {PYTHON} can name another", missing.collect::<Vec<_>>().join(", "))))
    }

    /// This Python, if it has torchvision as well.
    pub fn with_torchvision(self) -> Result<Self, PythonMissing> {
        let missing = |why| PythonMissing(format!("{} has no torchvision ({why})", self.program.display()));
        version(&self.program, "torchvision").map_err(missing)?;
        Ok(self)
    }
}

/// No Python has what is needed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct PythonMissing(String);

/// The interpreter next to this program, where pip has installed both.
fn of_this_environment() -> Option<PathBuf> {
    let python = std::env::current_exe().ok()?.with_file_name("python3");
    python.is_file().then_some(python)
}

/// The folder of the checkout in which this program was built.
fn of_checkout() -> Option<PathBuf> {
    let this = std::env::current_exe().ok()?;
    this.ancestors().map(|folder| folder.join(IN_CHECKOUT)).find(|python| python.is_file())
}

fn version(program: &Path, package: &str) -> Result<String, String> {
    said(Command::new(program).args(["-c", VERSION, package]))
}

/// What a program prints, or why it fails.
fn said(command: &mut Command) -> Result<String, String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(quotation(text.lines().last().unwrap_or("no reason was given")))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn takes_the_first_python_with_pytorch_and_gives_the_reason_of_each_without() {
        let folder = tempfile::tempdir().unwrap();
        let python = |name: &str, script: &str| {
            let path = folder.path().join(name);
            fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            path
        };
        let none = python("none", "echo Traceback >&2\necho 'no torch' >&2\nexit 1");
        let good = python("good", "[ \"$3\" = torch ] && echo 2.11.0");
        let absent = PathBuf::from("/no/such/python");
        let found = Python::first(&[absent.clone(), none.clone(), good.clone()]).unwrap();
        assert_eq!((&found.program, &*found.version), (&good, "2.11.0"));
        let error = Python::first(&[absent, none]).unwrap_err().to_string();
        assert!(error.starts_with("/no/such/python has no PyTorch (No such file"), "{error}");
        assert!(error.ends_with("/none has no PyTorch (no torch); LOCKSTEP_PYTHON can name another"), "{error}");
    }
}
