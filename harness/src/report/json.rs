//! A report for programs.
//!
//! Field names are stable; new ones may be added. [`VERSION`] increases when one changes its meaning or is removed.
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
//! | `cases[].timeline` | as [`super::Timeline`]; times are seconds since its `began`, which is seconds since the Unix epoch |

use serde::Serialize;

use super::{Case, Finding, HostInfo, Report, Table, Timeline, Verdict, formatting};

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
pub(super) fn render(report: &Report) -> serde_json::Result<String> {
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

fn one(case: &Case) -> One<'_> {
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::testing::sample;
    use super::*;

    fn keys(value: &Value) -> Vec<&str> {
        value.as_object().unwrap().keys().map(String::as_str).collect()
    }

    #[test]
    fn keeps_the_names_that_are_documented() {
        let root: Value = serde_json::from_str(&render(&sample()).unwrap()).unwrap();
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
        let root: Value = serde_json::from_str(&render(&sample()).unwrap()).unwrap();
        assert_eq!(root["verdict"], "FAILED");
        assert_eq!(root["counts"], json!({"passed": 1, "failed": 1, "not_verified": 1}));
        let verdicts: Vec<_> = root["cases"].as_array().unwrap().iter().map(|case| &case["verdict"]).collect();
        assert_eq!(verdicts, ["passed", "FAILED", "not verified here"]);
        assert_eq!(root["cases"][0]["timeline"]["nodes"][0]["rows"][1]["spans"][2]["state"], "dead");
        assert_eq!(root["started"], "2026-02-03T04:05:06.250Z");
    }
}
