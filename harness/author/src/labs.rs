//! Finds labs by number or name, and their folders in the checkout. `lockstep_grading::labs` has the list of labs.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use lockstep_contract::foreign;
use lockstep_grading::Lab;

use crate::exit::Refused;

/// The lab of this number, folder or package: `2`, `02`, `02-spawn-ddp`, `lab-02-spawn-ddp`, `ex-02`.
pub(crate) fn find(text: &str) -> anyhow::Result<Lab> {
    lockstep_grading::labs::find(text).map_err(|error| Refused(error.to_string()).into())
}

/// The labs of these names as they are in the checkout, in the course's order; all labs without names. The checkout may contain
/// labs that are newer than this command.
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
