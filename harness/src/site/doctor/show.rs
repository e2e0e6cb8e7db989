//! The report: a table of the nodes and a list of the faults for people, or JSON.

use std::io::Write;

use anyhow::Context;
use lockstep_contract::foreign::escaped;

use super::facts::{JobFacts, Node};
use super::names::{self, ChosenInterface};
use super::rules::AtNodes;
use crate::report::{TextStyle, Screen, whole_words};
use crate::site::rules::{Reported, listed, summary};

/// At most this many gaps are shown.
const GAPS: usize = 4;

/// Prints the report.
///
/// # Errors
/// The system's, if JSON cannot be written.
pub(super) fn show(job: &JobFacts, findings: &[Reported<AtNodes>], json: bool) -> anyhow::Result<()> {
    if json {
        let whole = serde_json::json!({ "findings": findings, "job": job });
        let text = serde_json::to_string_pretty(&whole)? + "\n";
        return std::io::stdout().lock().write_all(text.as_bytes()).context("cannot write to stdout");
    }
    let screen = Screen::new(false);
    screen.line(text(job, findings, screen.style()));
    Ok(())
}

fn text(job: &JobFacts, findings: &[Reported<AtNodes>], look: TextStyle) -> String {
    let mut parts = vec![title(job), nodes(job, look)];
    if !findings.is_empty() {
        parts.push(listed(findings, look).trim_end().to_owned());
    }
    let gaps = job.nodes.iter().flat_map(|node| node.unseen.iter().map(move |gap| (node, gap)));
    parts.extend(
        gaps.take(GAPS).map(|(node, gap)| format!("not verified here: {} (on {})", escaped(gap), escaped(&node.name))),
    );
    parts.push(summary(findings));
    parts.join("\n\n")
}

fn title(job: &JobFacts) -> String {
    if job.has_several() {
        format!("lockstep doctor: {}, {} of {} nodes", job.title, job.nodes.len(), job.size)
    } else {
        format!("lockstep doctor: {}", job.title)
    }
}

/// What there is on each node.
fn nodes(job: &JobFacts, look: TextStyle) -> String {
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

fn taken(choices: &[ChosenInterface]) -> String {
    let shown = choices.iter().map(|choice| format!("{} ({})", escaped(&choice.interface), choice.address));
    let shown = shown.collect::<Vec<_>>().join(", ");
    if shown.is_empty() { "nothing".into() } else { shown }
}

#[cfg(test)]
mod tests {
    use super::super::{examples, rules};
    use super::*;

    #[test]
    fn shows_nodes_and_faults_the_worst_first() {
        let mut job = examples::job(3);
        for rule in rules::all() {
            if ["port-blocked", "host-name-is-loopback", "omp-threads-exceed", "node-silent"].contains(&rule.name) {
                (rule.wrong)(&mut job);
            }
        }
        job.nodes[0].unseen.push("names of addresses: cannot run getent".into());
        let findings = rules::examine(&job);
        let shown = text(&job, &findings, TextStyle { width: 96, ..TextStyle::FILE });
        insta::with_settings!({ omit_expression => true }, { insta::assert_snapshot!("report", shown) });
    }

    #[test]
    fn says_that_nothing_was_found() {
        let job = examples::job(1);
        let text = text(&job, &[], TextStyle::FILE);
        assert!(text.ends_with("\n\nnothing wrong was found"), "{text}");
    }
}
