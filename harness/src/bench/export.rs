//! Files with results: the extension of a file's name sets its format.

use super::results::Results;
use super::{page, picture, shown};
use crate::report::{Format, Look, Target};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Csv,
    Html,
    Json,
    Svg,
    Text,
}

impl Format for Form {
    const JSON: Self = Form::Json;
    const ENDINGS: &'static [(&'static str, Self)] = &[
        ("csv", Form::Csv),
        ("html", Form::Html),
        ("htm", Form::Html),
        ("json", Form::Json),
        ("svg", Form::Svg),
        ("txt", Form::Text),
    ];
    const UNKNOWN: &'static str = "the name must end with .json, .csv, .svg, .html or .txt, or be - for JSON on stdout";
}

/// # Errors
/// The error names the file and the system's reason.
pub(super) fn write(target: &Target<Form>, results: &Results) -> anyhow::Result<()> {
    target.save("the results", &render(results, target.form)?)
}

fn render(results: &Results, form: Form) -> anyhow::Result<String> {
    Ok(match form {
        Form::Csv => results.csv()?,
        Form::Html => page::render(results),
        Form::Json => results.json()?,
        Form::Svg => picture::file(results),
        Form::Text => {
            let (compared, machine) = (shown::compared(results), shown::machine(results));
            format!("{compared}\n{machine}\n{}\n", shown::results(results, Look::FILE))
        }
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
            ("e.txt", "bench launch: lockstep compared with torchrun\n2 cores"),
        ] {
            let path = dir.path().join(name);
            let target: Target<Form> = path.to_str().unwrap().parse().unwrap();
            write(&target, &sample()).unwrap();
            assert!(std::fs::read_to_string(&path).unwrap().starts_with(begins), "{name}");
        }
        assert!("-".parse::<Target<Form>>().unwrap().is_stdout());
        for name in ["results", "results.xml", "", "folder/"] {
            assert!(name.parse::<Target<Form>>().unwrap_err().contains(".json"), "{name}");
        }
    }
}
