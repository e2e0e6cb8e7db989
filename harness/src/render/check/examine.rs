//! Finds the mistakes of scripts, and prints them.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Serialize;

use super::rules::{RULES, Rule};
use super::script::Script;
use crate::exit::{Code, Refused};
use crate::report::{Level, count};

/// A mistake at its place.
#[derive(Debug, Serialize)]
struct Finding {
    file: String,
    /// From 1.
    line: usize,
    level: Level,
    /// The rule's name.
    rule: &'static str,
    what: String,
    why: &'static str,
    fix: String,
}

/// Checks these files and prints what was found.
///
/// # Errors
/// [`Refused`] for a file that cannot be read.
pub(crate) fn check(files: &[PathBuf], json: bool) -> anyhow::Result<Code> {
    let mut findings = Vec::new();
    for file in files {
        let text = std::fs::read(file).map_err(|error| Refused(format!("cannot read {}: {error}", file.display())))?;
        findings.extend(examine(file, &String::from_utf8_lossy(&text)));
    }
    let text = if json { serde_json::to_string_pretty(&findings)? + "\n" } else { text_of(&findings, files.len()) };
    std::io::stdout().lock().write_all(text.as_bytes()).context("cannot write to stdout")?;
    let failed = findings.iter().any(|finding| finding.level == Level::Error);
    Ok(if failed { Code::Failure } else { Code::Success })
}

fn examine(file: &Path, text: &str) -> Vec<Finding> {
    let script = Script::read(text);
    let mut findings = Vec::new();
    for rule in RULES.iter().copied().flatten() {
        for hit in (rule.find)(&script) {
            let Rule { name, level, why, .. } = rule;
            let file = file.display().to_string();
            findings.push(Finding {
                file,
                line: hit.line,
                level: *level,
                rule: name,
                what: hit.what,
                why,
                fix: hit.fix,
            });
        }
    }
    findings.sort_by_key(|finding| finding.line);
    findings
}

/// For people: as compilers do it, then a sum.
fn text_of(findings: &[Finding], files: usize) -> String {
    let mut text = String::new();
    for Finding { file, line, level, rule, what, why, fix } in findings {
        text.push_str(&format!("{file}:{line}: {level}: {what} [{rule}]\n    why: {why}\n    fix: {fix}\n"));
    }
    let of = |level| findings.iter().filter(|finding| finding.level == level).count();
    text + &format!(
        "{}: {}, {}\n",
        count(files, "script"),
        count(of(Level::Error), "error"),
        count(of(Level::Warning), "warning")
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn found(text: &str) -> Vec<&'static str> {
        examine(Path::new("job.sh"), text).into_iter().map(|finding| finding.rule).collect()
    }

    #[test]
    fn every_rule_finds_its_example_and_spares_the_right_one() {
        for Rule { name, wrong, right, .. } in RULES.iter().copied().flatten() {
            assert!(found(wrong).contains(name), "{name} is not found, but {:?}, in\n{wrong}", found(wrong));
            assert!(!found(right).contains(name), "{name} is found in\n{right}");
        }
    }

    #[test]
    fn a_right_example_has_no_error_of_another_kind() {
        for Rule { name, right, .. } in RULES.iter().copied().flatten() {
            let errors =
                examine(Path::new("job.sh"), right).into_iter().filter(|finding| finding.level == Level::Error);
            let errors: Vec<_> = errors.map(|finding| (finding.line, finding.rule)).collect();
            assert!(errors.is_empty(), "{name}: {errors:?} in\n{right}");
        }
    }

    #[test]
    fn names_are_unique_and_there_are_at_least_25_kinds() {
        let names: Vec<_> = RULES.iter().copied().flatten().map(|rule| rule.name).collect();
        assert!(names.len() >= 25, "{}", names.len());
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
    }

    #[test]
    fn a_finding_names_the_line_it_stands_in() {
        let text = "#!/bin/bash\n#SBATCH --nodes=2 --time=1:00:00\nset -e\n\nsrun bash -c '\n  export MASTER_ADDR=$(hostname)\n'\n";
        let findings = examine(Path::new("job.sh"), text);
        let at: Vec<_> = findings.iter().map(|finding| (finding.line, finding.rule)).collect();
        assert_eq!(at, [(6, "master-is-each-node")]);
    }

    #[test]
    fn survives_a_script_that_is_cut_anywhere() {
        for Rule { wrong, .. } in RULES.iter().copied().flatten() {
            for (end, _) in wrong.char_indices() {
                found(&wrong[..end]);
            }
        }
    }
}
