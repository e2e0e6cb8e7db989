//! Files with results: the extension of a file's name sets its format.

use std::io::Write;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::Context;

use super::results::Results;
use super::{page, picture, shown};
use crate::report::{Look, save};

/// A file or stdout. Parsed from the command line, so that a wrong name is rejected before anything runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// JSON on stdout, once, at the end.
    Stdout,
    /// A file that is replaced after each round.
    File(PathBuf, Form),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Csv,
    Html,
    Json,
    Svg,
    Text,
}

impl FromStr for Target {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        if name == "-" {
            return Ok(Target::Stdout);
        }
        let path = PathBuf::from(name);
        let ending = path.extension().map(|ending| ending.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
        let form = match ending.as_str() {
            "csv" => Form::Csv,
            "html" | "htm" => Form::Html,
            "json" => Form::Json,
            "svg" => Form::Svg,
            "txt" => Form::Text,
            _ => {
                return Err(
                    "the name must end with .json, .csv, .svg, .html or .txt, or be - for JSON on stdout".into()
                );
            }
        };
        Ok(Target::File(path, form))
    }
}

impl Target {
    pub(super) fn is_stdout(&self) -> bool {
        matches!(self, Target::Stdout)
    }

    /// Replaces the file atomically.
    ///
    /// # Errors
    /// The error names the file and the system's reason.
    pub(super) fn write_file(&self, results: &Results) -> anyhow::Result<()> {
        let Target::File(path, form) = self else { return Ok(()) };
        let text = render(results, *form)?;
        save(path, &text).with_context(|| format!("cannot write the results to {}", path.display()))
    }

    /// # Errors
    /// Stdout cannot be written to.
    pub(super) fn write_stdout(&self, results: &Results) -> anyhow::Result<()> {
        let Target::Stdout = self else { return Ok(()) };
        std::io::stdout().lock().write_all(results.json()?.as_bytes()).context("cannot write the results to stdout")
    }
}

fn render(results: &Results, form: Form) -> anyhow::Result<String> {
    Ok(match form {
        Form::Csv => results.csv()?,
        Form::Html => page::render(results),
        Form::Json => results.json()?,
        Form::Svg => picture::file(results),
        Form::Text => format!("{}\n{}\n", shown::machine(results), shown::results(results, Look::FILE)),
    })
}

#[cfg(test)]
mod tests {
    use super::super::results::testing::sample;
    use super::*;

    #[test]
    fn takes_the_form_from_the_ending() {
        let dir = tempfile::tempdir().unwrap();
        for (name, begins) in [
            ("a.html", "<!DOCTYPE html>"),
            ("b.JSON", "{\n"),
            ("c.csv", "bench,case,quantity"),
            ("new/d.svg", "<svg "),
            ("e.txt", "2 cores"),
        ] {
            let path = dir.path().join(name);
            let target: Target = path.to_str().unwrap().parse().unwrap();
            target.write_file(&sample()).unwrap();
            assert!(std::fs::read_to_string(&path).unwrap().starts_with(begins), "{name}");
        }
        assert!("-".parse::<Target>().unwrap().is_stdout());
        for name in ["results", "results.xml", "", "folder/"] {
            assert!(name.parse::<Target>().unwrap_err().contains(".json"), "{name}");
        }
    }
}
