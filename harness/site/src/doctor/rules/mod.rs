//! The rules, by what they look at: each is a pure function of the facts. The book's page is made from [`all`].

pub(super) mod devices;
mod fabric;
pub(super) mod names;
mod network;
mod nodes;
mod resources;

use std::fmt;

use lockstep_contract::rules::{Finding, Level, Rule, Subject};
use serde::Serialize;

use super::facts::{JobFacts, Node};
use crate::rules::Reported;

/// The subject: the nodes of a job.
pub(super) struct Nodes;

impl Subject for Nodes {
    type Facts<'a> = JobFacts;
    type Level = Level;
    /// The names of nodes.
    type Place = Vec<String>;
    type Found = Vec<NodeFinding>;
    /// Makes the fault in a healthy job of three nodes.
    type Example = fn(&mut JobFacts);
}

pub(super) type NodeFinding = Finding<Vec<String>>;

/// The common fields of a rule: the right example is the healthy job, and the fix depends on the finding.
pub(super) const RULE: Rule<Nodes> = Rule {
    name: "",
    level: Level::Error,
    why: "",
    source: "",
    fix: "",
    wrong: |_| {},
    right: |_| {},
    find: |_| Vec::new(),
};

/// Where a finding is, for readers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct AtNodes {
    pub(super) at: Vec<String>,
    /// These are all nodes of a job of more than two.
    #[serde(skip)]
    all: bool,
}

impl fmt::Display for AtNodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.all { f.write_str("all nodes") } else { f.write_str(&self.at.join(", ")) }
    }
}

/// The fault of each node that has it: what, evidence, fix.
pub(super) fn each(job: &JobFacts, find: impl Fn(&Node) -> Option<[String; 3]>) -> Vec<NodeFinding> {
    job.nodes.iter().filter_map(|node| Some(found(&node.name, find(node)?))).collect()
}

pub(super) fn found(at: &str, [what, evidence, fix]: [String; 3]) -> NodeFinding {
    Finding { place: vec![at.to_owned()], what, evidence, fix }
}

/// The nodes by their values, if not all have the same: the most frequent value first, otherwise that of the first node. Nodes without
/// a value are left out.
fn different(job: &JobFacts, value: impl Fn(&Node) -> Option<String>) -> Option<Vec<(String, Vec<String>)>> {
    let mut groups: Vec<(String, Vec<String>)> = Vec::new();
    for (value, node) in job.nodes.iter().filter_map(|node| Some((value(node)?, node.name.clone()))) {
        match groups.iter_mut().find(|(known, _)| *known == value) {
            Some((_, nodes)) => nodes.push(node),
            None => groups.push((value, vec![node])),
        }
    }
    groups.sort_by_key(|(_, nodes)| std::cmp::Reverse(nodes.len()));
    (groups.len() > 1).then_some(groups)
}

/// A finding for values that differ, at the nodes that do not have the most frequent one.
pub(super) fn unequal(
    job: &JobFacts,
    what: &str,
    fix: &str,
    value: impl Fn(&Node) -> Option<String>,
) -> Vec<NodeFinding> {
    let Some(groups) = different(job, value) else { return Vec::new() };
    let shown = groups.iter().map(|(value, nodes)| format!("{value} on {}", nodes.join(", ")));
    let evidence = shown.collect::<Vec<_>>().join("; ");
    let place = groups.into_iter().skip(1).flat_map(|(_, nodes)| nodes).collect();
    vec![Finding { place, what: what.to_owned(), evidence, fix: fix.to_owned() }]
}

/// `4.0 GiB`, `64.0 MiB`.
pub(super) fn bytes(bytes: u64) -> String {
    let whole = bytes as f64;
    let (unit, name) = if bytes >= GIB { (GIB, "GiB") } else { (MIB, "MiB") };
    format!("{:.1} {name}", whole / unit as f64)
}

/// Mebibytes and gibibytes in bytes.
pub(super) const MIB: u64 = 1 << 20;
pub(super) const GIB: u64 = 1 << 30;

/// All rules, by subject.
pub(super) fn all() -> impl Iterator<Item = &'static Rule<Nodes>> {
    let lists = [
        nodes::NODES,
        network::NETWORK,
        names::NAMES,
        nodes::VARIABLES,
        resources::FILES,
        resources::LIMITS,
        devices::SOFTWARE,
        devices::GPUS,
        fabric::FABRIC,
    ];
    lists.into_iter().flatten()
}

/// All faults of a job, the worst first. Nodes with the same fault share a finding.
pub(super) fn examine(job: &JobFacts) -> Vec<Reported<AtNodes>> {
    let mut findings: Vec<Reported<AtNodes>> = Vec::new();
    for rule in all() {
        for finding in (rule.find)(job) {
            let place = AtNodes { at: finding.place.clone(), all: false };
            let new = Reported::new(rule, finding, place);
            let same = |other: &&mut Reported<AtNodes>| {
                (other.rule, &other.what, &other.evidence, &other.fix) == (new.rule, &new.what, &new.evidence, &new.fix)
            };
            match findings.iter_mut().find(same) {
                Some(known) => known.place.at.extend(new.place.at),
                None => findings.push(new),
            }
        }
    }
    for AtNodes { at, all } in findings.iter_mut().map(|finding| &mut finding.place) {
        *all = at.len() > 2 && job.nodes.iter().all(|node| at.contains(&node.name));
    }
    findings.sort_by_key(|finding| finding.level);
    findings
}

#[cfg(test)]
mod tests {
    use lockstep_contract::rules::prove;

    use super::super::examples::job;
    use super::*;

    #[test]
    fn writes_sizes_in_the_unit_that_fits() {
        assert_eq!([bytes(64 * MIB), bytes(3 * GIB / 2), bytes(0)], ["64.0 MiB", "1.5 GiB", "0.0 MiB"]);
    }

    fn found(make: fn(&mut JobFacts)) -> Vec<Reported<AtNodes>> {
        let mut job = job(3);
        make(&mut job);
        examine(&job)
    }

    #[test]
    fn finds_nothing_on_healthy_nodes() {
        for size in [1, 2, 3] {
            assert_eq!(examine(&job(size)), [], "{size} nodes");
        }
    }

    #[test]
    fn every_rule_finds_its_fault_in_no_healthy_job_and_no_other_error_with_it() {
        prove(all(), |_, make| found(*make).iter().map(|finding| finding.rule).collect());
        for Rule { name, wrong, .. } in all() {
            let findings = found(*wrong);
            let (own, others): (Vec<_>, Vec<_>) = findings.iter().partition(|finding| finding.rule == *name);
            let others = others.iter().filter(|finding| finding.level == Level::Error);
            assert_eq!(others.map(|finding| finding.rule).collect::<Vec<_>>(), [""; 0], "{name}");
            for text in [&own[0].what, &own[0].evidence, &own[0].fix] {
                assert!(!text.is_empty() && !text.ends_with('.'), "{name}: {text:?}");
            }
            assert!(!own[0].place.at.is_empty(), "{name} is nowhere");
        }
    }

    #[test]
    fn nodes_with_the_same_fault_share_a_finding_and_errors_come_first() {
        let mut job = job(3);
        for node in &mut job.nodes {
            node.variables.insert("CUDA_LAUNCH_BLOCKING".into(), "1".into());
        }
        job.nodes[1].limits.open_files = Some(64);
        let findings = examine(&job);
        let names: Vec<_> = findings.iter().map(|finding| finding.rule).collect();
        assert_eq!(names, ["open-files-low", "cuda-launch-blocking"]);
        assert_eq!(findings[1].place.at, ["n1", "n2", "n3"]);
        assert_eq!([&findings[0].place, &findings[1].place].map(ToString::to_string), ["n2", "all nodes"]);
    }
}
