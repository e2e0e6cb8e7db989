//! The labs' exercises, and where they lie: what the learner's commands and the maintainer's share.

mod answers;
mod begin;
mod check;
mod maintain;
mod reference;
mod variables;

use std::path::PathBuf;

use lockstep_grading::Lab;

use crate::exit::Refused;

pub(crate) use maintain::Options;

/// The labs with exercises, in the course's order.
pub(crate) const LABS: [Lab; 8] = [
    grade_01::LAB,
    grade_02::LAB,
    grade_03::LAB,
    grade_04::LAB,
    grade_05::LAB,
    grade_06::LAB,
    grade_07::LAB,
    grade_08::LAB,
];

/// The lab of this number, name or package: `2`, `02`, `02-spawn-ddp`, `ex-02`.
///
/// # Errors
/// [`Refused`], with those that there are.
pub(crate) fn find(text: &str) -> anyhow::Result<Lab> {
    let plain = text.strip_prefix("ex-").or_else(|| text.strip_prefix("lab-")).unwrap_or(text);
    let matches = |lab: &&Lab| lab.name == plain || lab.number() == format!("{plain:0>2}");
    LABS.iter().find(matches).copied().ok_or_else(|| {
        let names: Vec<&str> = LABS.iter().map(|lab| lab.name).collect();
        Refused(format!("no lab with exercises is called {text}: there are {}", names.join(", "))).into()
    })
}

/// The labs of these names; all, if there is none.
///
/// # Errors
/// As [`find`].
pub(crate) fn find_all(texts: &[String]) -> anyhow::Result<Vec<Lab>> {
    if texts.is_empty() { Ok(LABS.to_vec()) } else { texts.iter().map(|text| find(text)).collect() }
}

/// The checkout of the course: the one that the current folder is in, else the one that this program was built in.
///
/// # Errors
/// [`Refused`] when there is none.
pub(crate) fn checkout() -> anyhow::Result<PathBuf> {
    let begins = [std::env::current_dir().ok(), std::env::current_exe().ok()];
    let is_one = |folder: &&std::path::Path| folder.join("Cargo.lock").is_file() && folder.join("labs").is_dir();
    let found = begins.iter().flatten().find_map(|begin| begin.ancestors().find(is_one));
    found.map(Into::into).ok_or_else(|| Refused("this is no checkout of the course: go to its folder".into()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_labs_by_number_name_and_package() {
        for text in ["2", "02", "02-spawn-ddp", "ex-02"] {
            assert_eq!(find(text).unwrap().number(), "02", "{text}");
        }
        let told = find("99").unwrap_err().to_string();
        assert!(told.contains("99") && told.contains("02-spawn-ddp"), "{told}");
        assert_eq!(find_all(&[]).unwrap().len(), LABS.len());
    }
}
