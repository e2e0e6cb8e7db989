//! A report for programs: CSV for spreadsheets, JSON, and JUnit's XML for continuous integration.
//!
//! JSON: field names are stable; new ones may be added. [`VERSION`] increases when one changes its meaning or is removed.
//!
//! | field | meaning |
//! |---|---|
//! | `schema`, `version` | `lockstep-report`, and [`VERSION`] |
//! | `title`, `command` | what was done, and the command line |
//! | `started`, `seconds` | RFC 3339 in UTC, and how long it took |
//! | `verdict` | of all: `passed`, `FAILED`, `not verified here` or `open` |
//! | `counts` | the number of cases with each verdict: `passed`, `failed`, `not_verified`, `open` |
//! | `machine` | `host`, `kernel`, `architecture`, `cores`, `processor`, `memory` (bytes), `gpus` |
//! | `not_verified` | what this machine could not run, with the reasons |
//! | `tables` | of all cases together, each: `title`, `headings`, `rows` |
//! | `cases` | each: `name`, `shows`, `verdict`, `seconds`, `seed`, `replay`, `findings` (`claim`, `verdict`, `evidence`), `tables` (`title`, `headings`, `rows`), `timeline`, `log` |
//! | `cases[].timeline` | as [`Timeline`]; times are seconds since its `began`, which is seconds since the Unix epoch |
//!
//! JUnit: a suite for each case and a test for each claim. Claims that could not be verified, and tasks that are open, are skipped tests, with the reason. Source: the schema that Jenkins reads, as
//! `quick-junit` writes it.

use chrono::{DateTime, Utc};
use quick_junit::{NonSuccessKind, Property, SerializeError, TestCase, TestCaseStatus, TestSuite};
use serde::Serialize;

use crate::formatting::{self, plain};
use crate::model::{Finding, HostInfo, Report, ReportCase, Table, Verdict};
use crate::timeline::Timeline;

const HEADINGS: [&str; 7] = ["case", "verdict", "claim", "evidence", "seconds of the case", "seed", "replay"];

/// The report as comma-separated values (RFC 4180).
pub fn csv(report: &Report) -> anyhow::Result<String> {
    let mut rows = csv::Writer::from_writer(Vec::new());
    rows.write_record(HEADINGS)?;
    for case in &report.cases {
        let (seconds, seed) = (format!("{:.1}", case.took.as_secs_f64()), case.seed.map(|seed| seed.to_string()));
        for finding in &case.findings {
            let (claim, evidence) = (cell(&finding.claim), cell(&finding.evidence));
            let replay = case.replay.as_deref().unwrap_or_default();
            let verdict = finding.verdict.to_string();
            rows.write_record([
                &cell(&case.name),
                &verdict,
                &claim,
                &evidence,
                &seconds,
                seed.as_deref().unwrap_or_default(),
                replay,
            ])?;
        }
    }
    Ok(String::from_utf8(rows.into_inner()?)?)
}

/// Escapes a text so that no spreadsheet takes it for a formula: learners choose names and output.
pub fn cell(text: &str) -> String {
    let text = plain(text);
    if text.starts_with(['=', '+', '-', '@', '\t', '\r']) { format!("'{text}") } else { text }
}

/// The version of these fields.
const VERSION: u32 = 1;

#[derive(Serialize)]
struct Root<'a> {
    schema: &'static str,
    version: u32,
    title: &'a str,
    command: &'a str,
    started: String,
    seconds: f64,
    verdict: Verdict,
    counts: Counts,
    machine: &'a HostInfo,
    not_verified: &'a [String],
    tables: &'a [Table],
    cases: Vec<One<'a>>,
}

#[derive(Serialize)]
struct Counts {
    passed: usize,
    failed: usize,
    not_verified: usize,
    open: usize,
}

#[derive(Serialize)]
struct One<'a> {
    name: &'a str,
    shows: &'a str,
    verdict: Verdict,
    seconds: f64,
    seed: Option<u64>,
    replay: Option<&'a str>,
    findings: &'a [Finding],
    tables: &'a [Table],
    timeline: Option<&'a Timeline>,
    log: &'a [String],
}

/// The report, with a trailing newline.
pub fn json(report: &Report) -> serde_json::Result<String> {
    let count = |verdict| report.cases.iter().filter(|case| case.verdict() == verdict).count();
    let root = Root {
        schema: "lockstep-report",
        version: VERSION,
        title: &report.title,
        command: &report.command,
        started: formatting::rfc3339(report.started),
        seconds: report.took.as_secs_f64(),
        verdict: report.verdict(),
        counts: Counts {
            passed: count(Verdict::Passed),
            failed: count(Verdict::Failed),
            not_verified: count(Verdict::NotVerified),
            open: count(Verdict::Open),
        },
        machine: &report.machine,
        not_verified: &report.not_verified,
        tables: &report.tables,
        cases: report.cases.iter().map(one).collect(),
    };
    Ok(serde_json::to_string_pretty(&root)? + "\n")
}

fn one(case: &ReportCase) -> One<'_> {
    One {
        name: &case.name,
        shows: &case.shows,
        verdict: case.verdict(),
        seconds: case.took.as_secs_f64(),
        seed: case.seed,
        replay: case.replay.as_deref(),
        findings: &case.findings,
        tables: &case.tables,
        timeline: case.timeline.as_ref(),
        log: &case.log,
    }
}

/// The report as XML.
pub(crate) fn junit(report: &Report) -> Result<String, SerializeError> {
    let mut root = quick_junit::Report::new(plain(&report.title));
    root.set_timestamp(DateTime::<Utc>::from(report.started)).set_time(report.took);
    root.add_test_suites(report.cases.iter().map(suite));
    if !report.not_verified.is_empty() {
        let mut machine = TestSuite::new("this machine");
        machine
            .add_test_cases(report.not_verified.iter().map(|what| skipped("this machine", what, "not verified here")));
        root.add_test_suite(machine);
    }
    root.to_string()
}

fn suite(case: &ReportCase) -> TestSuite {
    let mut suite = TestSuite::new(plain(&case.name));
    suite.set_time(case.took).add_property(Property::new("shows", plain(&case.shows)));
    if let Some(seed) = case.seed {
        suite.add_property(Property::new("seed", seed.to_string()));
    }
    if let Some(replay) = &case.replay {
        suite.add_property(Property::new("replay", plain(replay)));
    }
    suite.add_test_cases(case.findings.iter().map(|finding| test(case, finding)));
    if case.findings.is_empty() {
        suite.add_test_case(skipped(&case.name, &case.shows, "nothing was found out"));
    }
    if !case.log.is_empty() {
        suite.set_system_out(plain(&case.log.join("\n")));
    }
    suite
}

fn test(case: &ReportCase, finding: &Finding) -> TestCase {
    let mut status = match finding.verdict {
        Verdict::Passed => TestCaseStatus::success(),
        Verdict::Failed => TestCaseStatus::non_success(NonSuccessKind::Failure),
        Verdict::NotVerified | Verdict::Open => return skipped(&case.name, &finding.claim, &finding.evidence),
    };
    status.set_message(plain(&finding.evidence));
    if finding.verdict == Verdict::Failed {
        let replay = case.replay.as_ref().map_or(String::new(), |replay| format!("\nrun it again: {replay}"));
        status.set_description(plain(&format!("{}\n{}{replay}", finding.claim, finding.evidence)));
    }
    let mut test = TestCase::new(plain(&finding.claim), status);
    test.set_classname(plain(&case.name));
    if finding.verdict == Verdict::Passed {
        test.set_system_out(plain(&finding.evidence));
    }
    test
}

fn skipped(class: &str, name: &str, reason: &str) -> TestCase {
    let mut status = TestCaseStatus::skipped();
    status.set_message(plain(reason));
    let mut test = TestCase::new(plain(name), status);
    test.set_classname(plain(class));
    test
}

#[cfg(test)]
mod tests {
    use roxmltree::{Document, Node};

    use super::*;
    use crate::testing::{HOSTILE, sample};

    #[test]
    fn has_every_claim_in_each_format() {
        let report = sample();
        insta::assert_snapshot!("csv", csv(&report).unwrap());
        insta::assert_snapshot!("json", json(&report).unwrap());
        insta::assert_snapshot!("junit", junit(&report).unwrap());
    }

    #[test]
    fn disarms_what_a_spreadsheet_would_compute() {
        assert_eq!(cell("=cmd()"), "'=cmd()");
        assert_eq!(cell("1 + 1"), "1 + 1");
    }

    fn all<'a>(document: &'a Document<'_>, tag: &'static str) -> Vec<Node<'a, 'a>> {
        document.descendants().filter(|node| node.has_tag_name(tag)).collect()
    }

    #[test]
    fn stays_well_formed_with_any_text() {
        let mut report = sample();
        report.title = HOSTILE.into();
        report.not_verified = vec![HOSTILE.into()];
        let case = &mut report.cases[1];
        (case.name, case.shows, case.replay, case.log) =
            (HOSTILE.into(), HOSTILE.into(), Some(HOSTILE.into()), vec![HOSTILE.into()]);
        case.findings.iter_mut().for_each(|finding| finding.evidence = HOSTILE.into());
        let xml = junit(&report).unwrap();
        let document = Document::parse(&xml).unwrap();
        assert!(all(&document, "script").is_empty());
    }
}
