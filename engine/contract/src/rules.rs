//! Rules: what a program knows about a subject, as lists. `lockstep doctor` knows faults of nodes, `lockstep render --check` mistakes in
//! batch scripts, and the verdict on a failed job the causes of failures.
//!
//! A [`Rule`] is one entry of such a list: a pure function of facts with its name, its level, its texts, an example that it finds and
//! one that it does not. The book's reference pages are made from the same entries, and [`prove`] tests each by its examples.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;

/// What a list of rules is about.
pub trait Subject: Sized + 'static {
    /// What a rule looks at.
    type Facts<'a>;
    /// How serious a finding is.
    type Level: Copy + fmt::Display;
    /// Where a finding is: nodes of a job, a line of a script, a rank.
    type Place;
    /// What a rule returns: at most one finding, or any number.
    type Found: IntoIterator<Item = Finding<Self::Place>>;
    /// What facts for a test are made from.
    type Example: 'static;
}

/// One thing that can be wrong.
pub struct Rule<S: Subject> {
    /// Unique; people look it up.
    pub name: &'static str,
    /// How serious a finding is.
    pub level: S::Level,
    /// The consequence of a finding; empty if the finding names it.
    pub why: &'static str,
    /// The source of the rule; empty if the finding gives it.
    pub source: &'static str,
    /// What to do; empty if the finding says so.
    pub fix: &'static str,
    /// An example that this rule finds.
    pub wrong: S::Example,
    /// An example that it does not find.
    pub right: S::Example,
    /// Checks facts for this fault.
    pub find: fn(&S::Facts<'_>) -> S::Found,
}

impl<S: Subject> Rule<S> {
    /// What to do about this finding of the rule.
    pub fn fix_of<'a>(&'a self, finding: &'a Finding<S::Place>) -> &'a str {
        if finding.fix.is_empty() { self.fix } else { &finding.fix }
    }
}

/// A rule's finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding<P> {
    /// Where it is.
    pub place: P,
    /// What is wrong, in the words of the machine or the script.
    pub what: String,
    /// How it is known; empty if the place shows it.
    pub evidence: String,
    /// What to do; empty if the rule says so.
    pub fix: String,
}

impl<P: Default> Finding<P> {
    /// A finding at the place of whatever was looked at, with the rule's own advice.
    pub fn new(what: impl Into<String>, evidence: impl Into<String>) -> Self {
        Finding { place: P::default(), what: what.into(), evidence: evidence.into(), fix: String::new() }
    }
}

impl<P> Finding<P> {
    /// Adds evidence.
    pub fn and(mut self, evidence: Option<impl fmt::Display>) -> Self {
        if let Some(evidence) = evidence {
            self.evidence += &format!("; {evidence}");
        }
        self
    }

    /// This finding, at another place.
    pub fn at(self, place: P) -> Self {
        Finding { place, ..self }
    }
}

/// How serious a fault or mistake is, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// It does not start, fails, hangs, loses data, or does something other than what was asked.
    Error,
    /// It works but may fail later, or it is slow.
    Warning,
    /// Good to know.
    Note,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Level::Error => "error",
            Level::Warning => "warning",
            Level::Note => "note",
        })
    }
}

/// Proves a list of rules by their examples, in tests. `found` returns the names of the rules that find something in an example.
///
/// # Panics
/// If a rule does not find its wrong example, or finds its right one; if two have the same name; if a rule says neither why it matters
/// nor what its source is; if a text ends with a full stop.
pub fn prove<S: Subject>(
    rules: impl Iterator<Item = &'static Rule<S>>,
    found: impl Fn(&'static Rule<S>, &S::Example) -> Vec<&'static str>,
) {
    let mut names = BTreeSet::new();
    for rule in rules {
        let Rule { name, why, source, fix, wrong, right, .. } = rule;
        assert!(names.insert(*name), "two rules are called {name}");
        assert!(!why.is_empty() || !source.is_empty(), "{name} says neither why it matters nor what it is known from");
        assert!(![why, source, fix].iter().any(|text| text.ends_with('.')), "a text of {name} ends with a full stop");
        let (in_wrong, in_right) = (found(rule, wrong), found(rule, right));
        assert!(in_wrong.contains(name), "{name} does not find its wrong example: {in_wrong:?}");
        assert!(!in_right.contains(name), "{name} finds its right example: {in_right:?}");
    }
    assert!(!names.is_empty(), "there are no rules");
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Numbers;

    impl Subject for Numbers {
        type Facts<'a> = i32;
        type Level = Level;
        type Place = ();
        type Found = Option<Finding<()>>;
        type Example = i32;
    }

    const NEGATIVE: Rule<Numbers> = Rule {
        name: "negative",
        level: Level::Error,
        why: "it has no root",
        source: "",
        fix: "",
        wrong: -1,
        right: 0,
        find: |number| {
            let finding = || Finding::new(format!("{number} < 0"), "its sign");
            (*number < 0).then(finding)
        },
    };

    /// Why a list with this one rule is refused.
    fn refused(rule: Rule<Numbers>) -> String {
        let rule: &'static Rule<Numbers> = Box::leak(Box::new(rule));
        let found =
            |rule: &'static Rule<Numbers>, number: &i32| (rule.find)(number).map(|_| rule.name).into_iter().collect();
        let proved = std::panic::catch_unwind(|| prove([rule].into_iter(), found));
        proved.err().and_then(|panic| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
    }

    #[test]
    fn a_findings_own_advice_comes_before_that_of_its_rule() {
        let rule = Rule::<Numbers> { fix: "add to it", ..NEGATIVE };
        let finding = (rule.find)(&-3).unwrap();
        assert_eq!(rule.fix_of(&finding), "add to it");
        assert_eq!(rule.fix_of(&Finding { fix: "add 3".into(), ..finding }), "add 3");
    }

    #[test]
    fn a_rule_is_proved_by_both_its_examples() {
        assert_eq!(refused(NEGATIVE), "");
        assert!(refused(Rule { wrong: 7, ..NEGATIVE }).starts_with("negative does not find its wrong example"));
        assert!(refused(Rule { right: -7, ..NEGATIVE }).starts_with("negative finds its right example"));
        assert!(refused(Rule { why: "", ..NEGATIVE }).contains("neither why"));
        assert!(refused(Rule { why: "it has no root.", ..NEGATIVE }).contains("full stop"));
    }
}
