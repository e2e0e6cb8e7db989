//! The report: two tables for people, or JSON.

use std::io::Write;

use anyhow::Context;
use comfy_table::{Attribute, Cell, Color, ColumnConstraint, Table, Width};
use lockstep_contract::foreign::escaped;

use super::facts::{Job, Node};
use super::names::{self, Choice};
use super::rules::Finding;
use crate::report::{Level, Screen, TextStyle, count, whole_words};

/// At most this many gaps are shown.
const GAPS: usize = 4;

/// Prints the report.
///
/// # Errors
/// The system's, if JSON cannot be written.
pub(super) fn show(job: &Job, findings: &[Finding], json: bool) -> anyhow::Result<()> {
    if json {
        let whole = serde_json::json!({ "findings": findings, "job": job });
        let text = serde_json::to_string_pretty(&whole)? + "\n";
        return std::io::stdout().lock().write_all(text.as_bytes()).context("cannot write to stdout");
    }
    let screen = Screen::new(false);
    screen.line(text(job, findings, screen.style()));
    Ok(())
}

/// The report for people.
fn text(job: &Job, findings: &[Finding], look: TextStyle) -> String {
    let mut parts = vec![title(job), nodes(job, look)];
    if !findings.is_empty() {
        parts.push(faults(job, findings, look).to_string());
    }
    let gaps = job.nodes.iter().flat_map(|node| node.unseen.iter().map(move |gap| (node, gap)));
    parts.extend(
        gaps.take(GAPS).map(|(node, gap)| format!("not verified here: {} (on {})", escaped(gap), escaped(&node.name))),
    );
    parts.push(sum(findings));
    parts.join("\n\n")
}

fn title(job: &Job) -> String {
    if job.has_several() {
        format!("lockstep doctor: {}, {} of {} nodes", job.title, job.nodes.len(), job.size)
    } else {
        format!("lockstep doctor: {}", job.title)
    }
}

/// What there is on each node.
fn nodes(job: &Job, look: TextStyle) -> String {
    let mut table = look.table(&["node", "processors", "memory", "GPUs", "Gloo takes", "NCCL takes", "libtorch"]);
    for node in &job.nodes {
        let memory = node.memory.limit.into_iter().chain(node.memory.total).min();
        let libtorch = node.libtorch.as_ref().map(|found| found.version.clone().unwrap_or_else(|| "unknown".into()));
        table.add_row([
            escaped(&node.name),
            node.processors().to_string(),
            memory.map_or_else(|| "?".into(), |bytes| format!("{:.0} GiB", bytes as f64 / f64::from(1 << 30))),
            gpus(node),
            taken(&names::gloo(node)),
            taken(&names::nccl(node)),
            libtorch.unwrap_or_else(|| "none".into()),
        ]);
    }
    whole_words(table, look)
}

fn gpus(node: &Node) -> String {
    let ways = if node.gpus.paths.iter().any(|path| path.tier.starts_with("NV")) { ", NVLink" } else { "" };
    match (node.gpus.present, node.gpus.cards.first()) {
        (0, _) => "none".into(),
        (count, None) => count.to_string(),
        (count, Some(card)) => format!("{count} × {}{ways}", escaped(&card.name)),
    }
}

fn taken(choices: &[Choice]) -> String {
    let shown = choices.iter().map(|choice| format!("{} ({})", escaped(&choice.interface), choice.address));
    let shown = shown.collect::<Vec<_>>().join(", ");
    if shown.is_empty() { "nothing".into() } else { shown }
}

fn faults(job: &Job, findings: &[Finding], look: TextStyle) -> Table {
    let mut table = look.table(&["level", "fault", "where", "what, how it is known, and the fix"]);
    table.set_constraints([
        ColumnConstraint::ContentWidth,
        ColumnConstraint::ContentWidth,
        ColumnConstraint::UpperBoundary(Width::Fixed(14)),
    ]);
    for finding in findings {
        let all = finding.at.len() > 1 && job.nodes.iter().all(|node| finding.at.contains(&node.name));
        let place = if all && finding.at.len() > 2 { "all nodes".to_owned() } else { escaped(&finding.at.join(", ")) };
        let text = format!(
            "{}\nknown by: {}\nfix: {}",
            escaped(&finding.what),
            escaped(&finding.evidence),
            escaped(&finding.fix)
        );
        table.add_row([level(finding.level, look), Cell::new(finding.check), Cell::new(place), Cell::new(text)]);
    }
    table
}

fn level(level: Level, look: TextStyle) -> Cell {
    let cell = Cell::new(level);
    match level {
        Level::Error if look.coloured => cell.fg(Color::Red).add_attribute(Attribute::Bold),
        Level::Warning if look.coloured => cell.fg(Color::Yellow),
        _ => cell,
    }
}

/// `2 errors, 1 warning`, or that there are none.
fn sum(findings: &[Finding]) -> String {
    let of = |level| findings.iter().filter(|finding| finding.level == level).count();
    let counted = [Level::Error, Level::Warning, Level::Note].map(|level| (of(level), level));
    let shown = counted.iter().filter(|(number, _)| *number > 0);
    let shown = shown.map(|(number, level)| count(*number, &level.to_string()));
    let shown = shown.collect::<Vec<_>>().join(", ");
    if shown.is_empty() { "no faults were found".into() } else { shown }
}

#[cfg(test)]
mod tests {
    use super::super::{rules, testing};
    use super::*;

    #[test]
    fn shows_nodes_and_faults_the_worst_first() {
        let mut job = testing::job(3);
        for (name, make) in testing::FAULTS {
            if ["port-blocked", "host-name-is-loopback", "omp-threads-exceed", "node-silent"].contains(name) {
                make(&mut job);
            }
        }
        job.nodes[0].unseen.push("names of addresses: cannot run getent".into());
        let findings = rules::examine(&job);
        let shown = text(&job, &findings, TextStyle { width: 96, ..TextStyle::FILE });
        insta::with_settings!({ omit_expression => true }, { insta::assert_snapshot!("report", shown) });
    }

    #[test]
    fn says_that_nothing_was_found() {
        let job = testing::job(1);
        let text = text(&job, &[], TextStyle::FILE);
        assert!(text.ends_with("\n\nno faults were found"), "{text}");
    }
}
