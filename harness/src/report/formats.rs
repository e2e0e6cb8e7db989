//! A report for programs: CSV for spreadsheets, JSON, and JUnit's XML for continuous integration.
//!
//! JSON: field names are stable; new ones may be added. [`VERSION`] increases when one changes its meaning or is removed.
//!
//! | field | meaning |
//! |---|---|
//! | `schema`, `version` | `lockstep-report`, and [`VERSION`] |
//! | `title`, `command` | what was done, and the command line |
//! | `started`, `seconds` | RFC 3339 in UTC, and how long it took |
//! | `verdict` | of all: `passed`, `FAILED` or `not verified here` |
//! | `counts` | the number of cases with each verdict: `passed`, `failed`, `not_verified` |
//! | `machine` | `host`, `kernel`, `architecture`, `cores`, `processor`, `memory` (bytes), `gpus` |
//! | `not_verified` | what this machine could not run, with the reasons |
//! | `cases` | each: `name`, `shows`, `verdict`, `seconds`, `seed`, `replay`, `findings` (`claim`, `verdict`, `evidence`), `tables` (`title`, `headings`, `rows`), `timeline`, `log` |
//! | `cases[].timeline` | as [`Timeline`]; times are seconds since its `began`, which is seconds since the Unix epoch |
//!
//! JUnit: a suite for each case and a test for each claim. Claims that could not be verified are skipped tests, with the reason. Source: the schema that Jenkins reads, as
//! `quick-junit` writes it.

use chrono::{DateTime, Utc};
use quick_junit::{NonSuccessKind, Property, SerializeError, TestCase, TestCaseStatus, TestSuite};
use serde::Serialize;

use crate::report::formatting::{self, plain};
use crate::report::model::{Finding, HostInfo, Report, ReportCase, Table, Verdict};
use crate::report::timeline::Timeline;

const HEADINGS: [&str; 7] = ["case", "verdict", "claim", "evidence", "seconds of the case", "seed", "replay"];

/// The report as comma-separated values (RFC 4180).
pub(crate) fn csv(report: &Report) -> anyhow::Result<String> {
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
fn cell(text: &str) -> String {
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
    cases: Vec<One<'a>>,
}

#[derive(Serialize)]
struct Counts {
    passed: usize,
    failed: usize,
    not_verified: usize,
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
pub(crate) fn json(report: &Report) -> serde_json::Result<String> {
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
        },
        machine: &report.machine,
        not_verified: &report.not_verified,
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
        Verdict::NotVerified => return skipped(&case.name, &finding.claim, &finding.evidence),
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
    use serde_json::{Value, json};

    use super::*;
    use crate::report::testing::{HOSTILE, sample};

    #[test]
    fn has_a_row_for_each_claim() {
        let report = sample();
        let claims: usize = report.cases.iter().map(|case| case.findings.len()).sum();
        let text = csv(&report).unwrap();
        let rows: Vec<csv::StringRecord> =
            csv::Reader::from_reader(text.as_bytes()).records().collect::<Result<_, _>>().unwrap();
        assert_eq!(rows.len(), claims);
        assert_eq!(&rows[0][0], report.cases[0].name);
    }

    #[test]
    fn disarms_what_a_spreadsheet_would_compute() {
        assert_eq!(cell("=cmd()"), "'=cmd()");
        assert_eq!(cell("1 + 1"), "1 + 1");
    }

    fn keys(value: &Value) -> Vec<&str> {
        value.as_object().unwrap().keys().map(String::as_str).collect()
    }

    #[test]
    fn keeps_the_names_that_are_documented() {
        let root: Value = serde_json::from_str(&json(&sample()).unwrap()).unwrap();
        let expected = [
            "cases",
            "command",
            "counts",
            "machine",
            "not_verified",
            "schema",
            "seconds",
            "started",
            "title",
            "verdict",
            "version",
        ];
        assert_eq!(keys(&root), expected);
        let expected =
            ["findings", "log", "name", "replay", "seconds", "seed", "shows", "tables", "timeline", "verdict"];
        assert_eq!(keys(&root["cases"][0]), expected);
        let timeline = &root["cases"][0]["timeline"];
        assert_eq!(keys(timeline), ["began", "nodes", "notes", "recoveries", "seconds", "verdicts"]);
        let expected = ["advice", "at", "at_fault", "cause", "evidence", "host", "node", "rank", "rule"];
        assert_eq!(keys(&timeline["verdicts"][0]), expected);
        assert_eq!(keys(&timeline["nodes"][0]["rows"][0]), ["marks", "rank", "redone", "spans"]);
        let expected = ["at", "cause", "rank", "steps_lost", "time_to_detect", "time_to_next_step", "time_to_restart"];
        assert_eq!(keys(&timeline["recoveries"][0]), expected);
        assert_eq!((&root["schema"], &root["version"]), (&json!("lockstep-report"), &json!(1)));
    }

    #[test]
    fn contains_the_verdicts_of_all_and_of_each() {
        let root: Value = serde_json::from_str(&json(&sample()).unwrap()).unwrap();
        assert_eq!(root["verdict"], "FAILED");
        assert_eq!(root["counts"], json!({"passed": 1, "failed": 1, "not_verified": 1}));
        let verdicts: Vec<_> = root["cases"].as_array().unwrap().iter().map(|case| &case["verdict"]).collect();
        assert_eq!(verdicts, ["passed", "FAILED", "not verified here"]);
        assert_eq!(root["cases"][0]["timeline"]["nodes"][0]["rows"][1]["spans"][2]["state"], "dead");
        assert_eq!(root["started"], "2026-02-03T04:05:06.250Z");
    }

    fn all<'a>(document: &'a Document<'_>, tag: &'static str) -> Vec<Node<'a, 'a>> {
        document.descendants().filter(|node| node.has_tag_name(tag)).collect()
    }

    #[test]
    fn makes_a_suite_of_each_case_and_a_test_of_each_claim() {
        let xml = junit(&sample()).unwrap();
        let document = Document::parse(&xml).unwrap();
        let root = document.root_element();
        let counts = ["tests", "failures", "skipped", "errors"].map(|name| root.attribute(name).unwrap());
        assert_eq!((root.tag_name().name(), counts), ("testsuites", ["6", "1", "2", "0"]));
        let names: Vec<_> = all(&document, "testsuite").iter().map(|suite| suite.attribute("name").unwrap()).collect();
        assert_eq!(names, ["kill-one-then-lose-a-node", "tear-newest-snapshot", "cut-network", "this machine"]);
        let tests = all(&document, "testcase");
        assert_eq!(tests[0].attribute("classname"), Some("kill-one-then-lose-a-node"));
        assert_eq!(tests[0].attribute("name"), Some("The final weights are the same bits as without the faults"));
    }

    #[test]
    fn skips_with_a_reason_what_could_not_be_verified() {
        let xml = junit(&sample()).unwrap();
        let document = Document::parse(&xml).unwrap();
        let reasons: Vec<_> = all(&document, "skipped").iter().map(|skip| skip.attribute("message").unwrap()).collect();
        assert_eq!(reasons, ["network namespaces need a user who may make them", "not verified here"]);
    }

    #[test]
    fn reports_a_failure_with_its_reason_and_how_to_reproduce_it() {
        let xml = junit(&sample()).unwrap();
        let document = Document::parse(&xml).unwrap();
        let [failure] = all(&document, "failure").try_into().unwrap();
        assert!(failure.attribute("message").unwrap().starts_with("rank 0, fc.weight"));
        assert!(failure.text().unwrap().ends_with("run it again: lockstep inject tear-newest-snapshot --seed 7"));
        assert!(all(&document, "system-out").iter().any(|out| out.text().unwrap().contains("skips a torn snapshot")));
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
