//! Writes a report, or what else a command gives, to a file whose extension sets the form, or to stdout.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::Context;
use lockstep_contract::{Stdout, foreign};
use lockstep_paths::check_file;

use crate::model::Report;
use crate::screen::TextStyle;
use crate::{formats, html, table};

/// The form of what is written: a report, a bench's results, a run's curves, a timeline or a picture. Each has some of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Csv,
    Html,
    Json,
    Junit,
    Svg,
    Text,
}

/// Each form by the ending of a file's name, in lower case.
const ENDINGS: [(&str, Form); 7] = [
    ("html", Form::Html),
    ("htm", Form::Html),
    ("csv", Form::Csv),
    ("json", Form::Json),
    ("xml", Form::Junit),
    ("svg", Form::Svg),
    ("txt", Form::Text),
];

impl Form {
    /// Those of a report.
    const OF_A_REPORT: &'static [Form] = &[Form::Html, Form::Csv, Form::Json, Form::Junit, Form::Text];

    fn shown(self) -> &'static str {
        match self {
            Form::Csv => ".csv",
            Form::Html => ".html (a page)",
            Form::Json => ".json",
            Form::Junit => ".xml (JUnit)",
            Form::Svg => ".svg",
            Form::Text => ".txt",
        }
    }
}

/// A file or stdout, and the form of what is written there. Parsed from the command line, so that a wrong name, or a place where
/// nothing can be written, is rejected before anything runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// `None` for stdout.
    path: Option<PathBuf>,
    pub form: Form,
}

impl FromStr for Target {
    type Err = String;

    /// For a report.
    fn from_str(name: &str) -> Result<Self, String> {
        Target::parse(name, Form::OF_A_REPORT)
    }
}

impl Target {
    /// One of these forms, set by the file's extension; `-` is stdout, as JSON. The error names the forms.
    pub fn parse(name: &str, forms: &[Form]) -> Result<Self, String> {
        let stdout = forms.contains(&Form::Json);
        if stdout && name == "-" {
            return Ok(Target { path: None, form: Form::Json });
        }
        let path = PathBuf::from(name);
        let ending = path.extension().map(|ending| ending.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
        match ENDINGS.iter().find(|(known, form)| *known == ending && forms.contains(form)) {
            Some((_, form)) => Target::file(path, *form),
            None => {
                let known: Vec<&str> = forms.iter().map(|form| form.shown()).collect();
                let (known, or) = (known.join(", "), if stdout { ", or - for JSON on stdout" } else { "" });
                Err(format!("its extension names no format: {known}{or}"))
            }
        }
    }

    /// A file in this form, whatever its name. The error says why nothing can be written there, with advice.
    pub fn file(path: PathBuf, form: Form) -> Result<Self, String> {
        check_file(&path).map_err(|why| why.with_advice())?;
        Ok(Target { path: Some(path), form })
    }

    /// Returns true if the report goes to stdout, so that messages must go to stderr.
    pub fn is_stdout(&self) -> bool {
        self.path.is_none()
    }

    /// The file.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Writes `what`, a file atomically and into a new folder if necessary.
    pub fn save(&self, what: &str, text: &str) -> anyhow::Result<()> {
        match &self.path {
            None => Stdout.write_all(text.as_bytes()).with_context(|| format!("cannot write {what} to stdout")),
            Some(path) => save(path, text).with_context(|| format!("cannot write {what} to {}", foreign::path(path))),
        }
    }
}

impl Report {
    /// Writes the report in the target's form.
    pub fn write(&self, target: &Target) -> anyhow::Result<()> {
        let text = self.render(target.form).context("cannot format the report")?;
        target.save("the report", &text)
    }

    /// The part of the report for a person at a terminal.
    #[allow(dead_code)] // the tour has one case and its own words
    pub fn brief(&self, style: TextStyle) -> String {
        table::brief(self, style)
    }

    /// The report in this form, which is not a picture.
    pub fn render(&self, form: Form) -> anyhow::Result<String> {
        Ok(match form {
            Form::Csv => formats::csv(self)?,
            Form::Html => html::render(self),
            Form::Json => formats::json(self)?,
            Form::Junit => formats::junit(self)?,
            Form::Svg => anyhow::bail!("a report is no picture"),
            Form::Text => table::render(self, TextStyle::FILE),
        })
    }
}

/// Writes a temporary file next to it and renames that. An existing special file, such as a pipe, is written to directly.
pub fn save(path: &Path, text: &str) -> io::Result<()> {
    if fs::metadata(path).is_ok_and(|there| !there.is_file() && !there.is_dir()) {
        return fs::write(path, text);
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    lockstep_paths::write_atomically(path, |out| out.write_all(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::sample;

    fn target(path: &Path) -> Target {
        path.to_str().unwrap().parse().unwrap()
    }

    #[test]
    fn takes_the_form_from_the_ending() {
        let dir = tempfile::tempdir().unwrap();
        for (name, begins) in [
            ("a.html", "<!DOCTYPE html>"),
            ("b.JSON", "{\n"),
            ("e.csv", "case,verdict"),
            ("new/folder/c.xml", "<?xml "),
            ("d.txt", "Lockstep inject"),
        ] {
            let path = dir.path().join(name);
            sample().write(&target(&path)).unwrap();
            assert!(fs::read_to_string(&path).unwrap().starts_with(begins), "{name}");
        }
        assert!("-".parse::<Target>().unwrap().is_stdout());
    }

    #[test]
    fn refuses_a_name_without_a_known_ending() {
        for name in ["report", "report.pdf", "report.svg", "", ".html", "folder/"] {
            let refused = name.parse::<Target>().unwrap_err();
            let forms = ".html (a page), .csv, .json, .xml (JUnit), .txt, or - for JSON on stdout";
            assert_eq!(refused, format!("its extension names no format: {forms}"), "{name}");
        }
        assert_eq!(Target::parse("-", &[Form::Svg]).unwrap_err(), "its extension names no format: .svg");
    }

    #[test]
    fn replaces_an_older_report_and_leaves_no_temporary_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report.json");
        fs::write(&path, "old").unwrap();
        sample().write(&target(&path)).unwrap();
        assert!(fs::read_to_string(&path).unwrap().contains("lockstep-report"));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn names_the_file_that_it_cannot_write_and_leaves_no_temporary_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report.json");
        let target = target(&path);
        // After the command line was read.
        fs::create_dir(&path).unwrap();
        assert!(path.to_str().unwrap().parse::<Target>().unwrap_err().contains("is a folder, and a file is meant"));
        let error = sample().write(&target).unwrap_err();
        assert!(
            format!("{error:#}").starts_with(&format!("cannot write the report to {}: ", path.display())),
            "{error:#}"
        );
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
