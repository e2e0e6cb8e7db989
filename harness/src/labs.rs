//! Finds labs by number or name, their folders in the checkout, and their programs. `lockstep_grading::labs` has the list of labs.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use lockstep_contract::foreign;
use lockstep_grading::Lab;

use crate::exit::Refused;

/// The lab of this number, folder or package: `2`, `02`, `02-spawn-ddp`, `lab-02-spawn-ddp`, `ex-02`.
///
/// # Errors
/// [`Refused`], which lists the labs.
pub(crate) fn find(text: &str) -> anyhow::Result<Lab> {
    lockstep_grading::labs::find(text).map_err(|error| Refused(error.to_string()).into())
}

/// The labs of these names, or all labs without names.
///
/// # Errors
/// As [`find`].
pub(crate) fn find_all(texts: &[String]) -> anyhow::Result<Vec<Lab>> {
    if texts.is_empty() {
        Ok(lockstep_grading::labs::LABS.to_vec())
    } else {
        texts.iter().map(|text| find(text)).collect()
    }
}

/// The labs of these names as they are in the checkout, in the course's order; all labs without names. The checkout may contain
/// labs that are newer than this command.
///
/// # Errors
/// [`Refused`] for a name without a folder; the system's error.
pub(crate) fn in_checkout(root: &Path, texts: &[String]) -> anyhow::Result<Vec<Lab>> {
    let folder = root.join("labs");
    let entries = fs::read_dir(&folder).with_context(|| format!("cannot read {}", foreign::path(&folder)))?;
    let mut folders: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    folders.retain(|folder| folder.join("lab.toml").is_file());
    folders.sort();
    let labs: Vec<Lab> = folders.iter().map(|folder| Lab::read(folder)).collect::<anyhow::Result<_>>()?;
    let absent = texts.iter().find(|text| !labs.iter().any(|lab| lab.is_called(text)));
    if let Some(text) = absent {
        return Err(Refused(format!("{} has no lab called {text}", foreign::path(&folder))).into());
    }
    let chosen = |lab: &Lab| texts.is_empty() || texts.iter().any(|text| lab.is_called(text));
    Ok(labs.into_iter().filter(chosen).collect())
}

/// The checkout of the course: the one that contains the current folder, otherwise the one in which this program was built.
///
/// # Errors
/// [`Refused`] when there is none.
pub(crate) fn checkout() -> anyhow::Result<PathBuf> {
    let begins = [std::env::current_dir().ok(), std::env::current_exe().ok()];
    let found = begins.iter().flatten().find_map(|begin| checkout_around(begin));
    found
        .map(Into::into)
        .ok_or_else(|| Refused("this folder is not in a checkout of the course: go to one".into()).into())
}

/// The checkout that contains this file or folder.
pub(crate) fn checkout_around(path: &Path) -> Option<&Path> {
    path.ancestors().find(|folder| folder.join("Cargo.lock").is_file() && folder.join("labs").is_dir())
}

/// The program `name` in the folder of this executable.
///
/// # Errors
/// [`Refused`] if it does not exist, with the command that builds it.
pub(crate) fn program_beside(name: &str) -> anyhow::Result<PathBuf> {
    // Linux returns the file itself here, not the link through which it was started.
    let this = std::env::current_exe().context("cannot find this program's own path")?;
    let path = this.with_file_name(name);
    if path.is_file() {
        return Ok(path);
    }
    let folder = this.parent().unwrap_or(&this).display();
    Err(Refused(format!("cannot find the program {name} in {folder}: build it with `cargo build`")).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_command_that_builds_a_missing_lab() {
        let error = program_beside("lab-99-nothing").unwrap_err();
        let message = error.downcast::<Refused>().unwrap().to_string();
        assert!(
            message.contains("lab-99-nothing in /") && message.ends_with("build it with `cargo build`"),
            "{message}"
        );
    }
}
