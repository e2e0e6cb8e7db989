//! `lockstep course new`: creates a lab with one task as a starting point.
//!
//! Writes only into the lab's own folder, the chapter, and the book's summary. The exercise is generated from the solution, as
//! for every lab.

use std::fs;
use std::path::Path;

use anyhow::Context;
use lockstep_contract::foreign;
use lockstep_grading::{Lab, package};

use crate::exit::Refused;
use crate::labs::in_checkout;
use crate::report::Screen;

/// The files, each preceded by a line with its path. `{{lab}}`, `{{number}}` and `{{title}}` are replaced by the lab's own.
const TEMPLATE: &str = include_str!("new_lab.txt");
/// The start of such a line.
const FILE: &str = "==== ";

/// A new lab's names.
struct Names<'a> {
    /// `09-name`, the name of its folder.
    lab: &'a str,
    /// `09`.
    number: &'a str,
    /// `Name`.
    title: String,
}

/// Creates the lab in the checkout, and prints the next steps.
pub(crate) fn make(root: &Path, lab: &str) -> anyhow::Result<()> {
    let names = Names::parse(lab)?;
    let labs = in_checkout(root, &[])?;
    if let Some(other) = labs.iter().find(|other| other.number() == names.number) {
        return Err(Refused(format!("there is a lab {} already: {}", names.number, other.name)).into());
    }
    for (path, text) in files(&names.fill(TEMPLATE)) {
        package::write_file(&root.join(path), text)?;
    }
    list(root, &names)?;
    let made = Lab::read(&root.join("labs").join(lab))?;
    package::write_all(root, &made)?;
    let Names { number, .. } = names;
    let screen = Screen::new(false);
    screen.line(format_args!("made labs/{lab} and book/src/{lab}.md; book/src/SUMMARY.md lists the chapter"));
    screen.line(format_args!(
        "next: cargo build, then cargo test -p sol-{number} tries all answers, cargo test -p ex-{number} grades the exercise"
    ));
    Ok(())
}

impl<'a> Names<'a> {
    fn parse(lab: &'a str) -> Result<Self, Refused> {
        let refused =
            || Refused(format!("{lab:?} cannot be the name of a lab: it needs two digits and words, such as 09-name"));
        let (number, name) = lab.split_once('-').ok_or_else(refused)?;
        let is_number = number.len() == 2 && number.bytes().all(|byte| byte.is_ascii_digit());
        let is_word = |word: &str| {
            !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        };
        if !is_number || !name.split('-').all(is_word) {
            return Err(refused());
        }
        let title = name.replace('-', " ");
        Ok(Names { lab, number, title: title[..1].to_uppercase() + &title[1..] })
    }

    fn fill(&self, text: &str) -> String {
        text.replace("{{lab}}", self.lab).replace("{{number}}", self.number).replace("{{title}}", &self.title)
    }
}

/// The files of the template: their paths in the checkout, and their texts.
fn files(template: &str) -> impl Iterator<Item = (&str, &str)> {
    template.split(FILE).skip(1).filter_map(|file| file.split_once('\n'))
}

/// Inserts the chapter after the last numbered one of the book's summary.
fn list(root: &Path, names: &Names<'_>) -> anyhow::Result<()> {
    let path = root.join("book/src/SUMMARY.md");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", foreign::path(&path)))?;
    let mut lines: Vec<&str> = text.lines().collect();
    let own = names.fill("- [{{title}}]({{lab}}.md)");
    let numbered = |line: &str| {
        line.starts_with("- [") && line.split("](").nth(1).is_some_and(|to| to.starts_with(char::is_numeric))
    };
    let last = lines.iter().rposition(|line| numbered(line));
    lines.insert(last.map_or(lines.len(), |last| last + 1), &own);
    package::write_file(&path, &(lines.join("\n") + "\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_only_two_digits_and_words() {
        let names = Names::parse("09-mixed-precision").unwrap();
        assert_eq!((names.number, &*names.title), ("09", "Mixed precision"));
        for lab in ["9-name", "09", "09-", "09-Name", "09-a--b", "../09-x", "009-x", "ab-x"] {
            assert!(Names::parse(lab).is_err(), "{lab}");
        }
    }
}
