//! Rules as the commands print their findings, and as the book's reference pages list them.

use std::fmt;

use lockstep_contract::foreign::escaped;
use lockstep_contract::rules::{Finding, Level, Rule, Subject};
use serde::Serialize;

use crate::report::{TextStyle, count};

/// A finding with its rule's fields, as in the JSON output. `P` is its place for readers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Reported<P> {
    #[serde(flatten)]
    pub(super) place: P,
    pub(super) level: Level,
    pub(super) rule: &'static str,
    pub(super) what: String,
    pub(super) why: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) evidence: String,
    pub(super) fix: String,
}

impl<P> Reported<P> {
    /// What a rule has found, at this place.
    pub(super) fn new<S: Subject<Level = Level>>(rule: &'static Rule<S>, finding: Finding<S::Place>, place: P) -> Self {
        let fix = rule.fix_of(&finding).to_owned();
        let Finding { what, evidence, .. } = finding;
        Reported { place, level: rule.level, rule: rule.name, what, why: rule.why, evidence, fix }
    }
}

/// The findings for people, in the form of compilers' messages: each begins with its place, and a command that fixes it can be copied.
pub(super) fn listed<P: fmt::Display>(findings: &[Reported<P>], look: TextStyle) -> String {
    let mut text = String::new();
    for Reported { place, level, rule, what, why, evidence, fix } in findings {
        let place = escaped(&place.to_string());
        text.push_str(&format!("{place}: {}: {} [{rule}]\n", coloured(*level, look), escaped(what)));
        for (title, line) in [("why", *why), ("known by", evidence), ("fix", fix)] {
            if !line.is_empty() {
                text.push_str(&format!("    {title}: {}\n", escaped(line)));
            }
        }
    }
    text
}

fn coloured(level: Level, look: TextStyle) -> String {
    let code = match level {
        Level::Error => "1;31",
        Level::Warning => "33",
        Level::Note => return level.to_string(),
    };
    if look.coloured { format!("\x1b[{code}m{level}\x1b[0m") } else { level.to_string() }
}

/// `2 errors, 1 warning`, or that there are none.
pub(super) fn summary<P>(findings: &[Reported<P>]) -> String {
    let of = |level| findings.iter().filter(|finding| finding.level == level).count();
    let counted = [Level::Error, Level::Warning, Level::Note].map(|level| (of(level), level));
    let shown = counted.iter().filter(|(number, _)| *number > 0);
    let shown: Vec<String> = shown.map(|(number, level)| count(*number, &level.to_string())).collect();
    if shown.is_empty() { "nothing wrong was found".into() } else { shown.join(", ") }
}

/// Returns true if a finding is an error: then the exit code is 1.
pub(super) fn has_error<P>(findings: &[Reported<P>]) -> bool {
    findings.iter().any(|finding| finding.level == Level::Error)
}

/// A column of a reference page's table: its heading, and a rule's cell.
pub type Column<S> = (&'static str, fn(&Rule<S>) -> String);

/// A table of rules for the book.
pub fn table<S: Subject>(rules: impl Iterator<Item = &'static Rule<S>>, columns: &[Column<S>]) -> String {
    let row = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let headings = columns.iter().map(|(heading, _)| (*heading).to_owned()).collect();
    let mut text = format!("\n<div class=\"wide\">\n\n{}|{}\n", row(headings), "---|".repeat(columns.len()));
    for rule in rules {
        text.push_str(&row(columns.iter().map(|(_, cell)| cell(rule).replace('|', "\\|")).collect()));
    }
    text + "\n</div>\n"
}

/// A section for each rule with its examples, as text, for the book.
pub(crate) fn sections<S: Subject<Level = Level>>(
    rules: impl Iterator<Item = &'static Rule<S>>,
    shown: impl Fn(&S::Example) -> String,
) -> String {
    let mut text = String::new();
    for Rule { name, level, why, wrong, right, .. } in rules {
        let level = level.to_string();
        let level = level[..1].to_uppercase() + &level[1..];
        let (wrong, right) = (shown(wrong), shown(right));
        text.push_str(&format!(
            "\n## {name}\n\n{level}: {why}.\n\nWrong:\n\n```text\n{wrong}\n```\n\nRight:\n\n```text\n{right}\n```\n"
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_the_level_alone_and_counts_only_what_there_is() {
        let finding = |level| Reported {
            place: "job.sh:3",
            level,
            rule: "no-wait",
            what: "nobody waits\n".into(),
            why: "the script ends",
            evidence: String::new(),
            fix: "wait".into(),
        };
        let findings = [finding(Level::Error), finding(Level::Warning), finding(Level::Warning)];
        let plain = listed(&findings[..1], TextStyle::FILE);
        assert_eq!(plain, "job.sh:3: error: nobody waits\\n [no-wait]\n    why: the script ends\n    fix: wait\n");
        let coloured = listed(&findings[..1], TextStyle { coloured: true, ..TextStyle::FILE });
        assert_eq!(coloured, plain.replace("error", "\x1b[1;31merror\x1b[0m"));
        assert_eq!(summary(&findings), "1 error, 2 warnings");
        assert_eq!(
            (summary(&findings[..0]).as_str(), has_error(&findings), has_error(&findings[1..])),
            ("nothing wrong was found", true, false)
        );
    }
}
