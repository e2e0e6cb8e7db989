//! A finished scenario as a case of a report.

use std::time::Duration;

use super::memory;
use super::scenario::Scenario;
use super::suite_runner::ScenarioOutcome;
use crate::checks::counted;
use crate::report::Case;

/// The number of last output lines in a report.
const LINES: usize = 40;

/// The case; `replay` is the command that runs only it again, `seed` the seed from which it was drawn.
pub(crate) fn case(outcome: &ScenarioOutcome, replay: Option<String>, seed: Option<u64>) -> Case {
    let scenario = &outcome.scenario;
    let seen = outcome.seen.as_ref();
    let lines: Vec<_> = seen.map_or_else(Vec::new, |seen| seen.output.lines().map(str::to_owned).collect());
    Case {
        name: scenario.name.clone(),
        shows: shows(scenario),
        findings: outcome.findings.clone(),
        took: seen.map_or(Duration::ZERO, |seen| Duration::try_from_secs_f64(seen.seconds).unwrap_or_default()),
        seed,
        replay,
        timeline: seen.map(|seen| seen.timeline.clone()),
        tables: seen.and_then(|seen| memory::table(&seen.events)).into_iter().collect(),
        log: lines[lines.len().saturating_sub(LINES)..].to_vec(),
    }
}

/// On one line, without the last full stop.
fn shows(scenario: &Scenario) -> String {
    let words: Vec<_> = scenario.shows.split_whitespace().collect();
    format!("{}. {}", scenario.title, words.join(" ").trim_end_matches('.'))
}

/// `1.9 s, 1 restart, 2 steps again, back after 0.41 s`.
pub(crate) fn figures(one: &ScenarioOutcome) -> String {
    let Some(seen) = &one.seen else { return "not run".into() };
    let restarts = &seen.restarts;
    let mut parts = vec![format!("{:.1} s", seen.seconds), counted(restarts.count as usize, "restart")];
    if restarts.count > 0 {
        parts.push(format!("{} again", counted(restarts.steps_repeated as usize, "step")));
    }
    parts.extend(restarts.slowest().map(|seconds| format!("back after {seconds:.2} s")));
    parts.join(", ")
}
