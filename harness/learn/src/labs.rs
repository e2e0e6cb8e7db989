//! Finds labs by number or name.

use lockstep_grading::Lab;

use crate::exit::Refused;

/// The lab of this number, folder or package: `2`, `02`, `02-spawn-ddp`, `lab-02-spawn-ddp`, `ex-02`.
pub(crate) fn find(text: &str) -> anyhow::Result<Lab> {
    lockstep_grading::labs::find(text).map_err(|error| Refused(error.to_string()).into())
}

/// The labs of these names, or all labs without names.
pub(crate) fn find_all(texts: &[String]) -> anyhow::Result<Vec<Lab>> {
    if texts.is_empty() {
        Ok(lockstep_grading::labs::LABS.to_vec())
    } else {
        texts.iter().map(|text| find(text)).collect()
    }
}
