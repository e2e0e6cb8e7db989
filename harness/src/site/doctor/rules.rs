//! The rules: each is a pure function of the facts. The book's page is made from [`all`].

use serde::Serialize;

use super::facts::{Job, Node};
use super::{devices, fabric, names, network, nodes, resources, variables};
use crate::report::Level;

/// A kind of fault.
pub(crate) struct Check {
    /// Unique; people look it up.
    pub(crate) name: &'static str,
    /// How bad it is.
    pub(crate) level: Level,
    /// What happens because of it, in one sentence.
    pub(crate) why: &'static str,
    /// What doctor looks at.
    pub(crate) source: &'static str,
    /// Where the fault is.
    pub(super) find: fn(&Job) -> Vec<Found>,
}

/// A place with a fault.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// The names of nodes.
    pub(super) at: Vec<String>,
    /// What is wrong, with the machine's own words.
    pub(super) what: String,
    /// How it is known.
    pub(super) evidence: String,
    /// The command that fixes it, or what to do.
    pub(super) fix: String,
}

/// The fault of each node that has it: what, evidence, fix.
pub(super) fn each(job: &Job, find: impl Fn(&Node) -> Option<[String; 3]>) -> Vec<Found> {
    job.nodes.iter().filter_map(|node| Some(found(&node.name, find(node)?))).collect()
}

pub(super) fn found(at: &str, [what, evidence, fix]: [String; 3]) -> Found {
    Found { at: vec![at.to_owned()], what, evidence, fix }
}

/// The nodes by their values, if not all have the same: the most frequent value first, otherwise that of the first node. Nodes without
/// a value are left out.
fn different(job: &Job, value: impl Fn(&Node) -> Option<String>) -> Option<Vec<(String, Vec<String>)>> {
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
pub(super) fn unequal(job: &Job, what: &str, fix: &str, value: impl Fn(&Node) -> Option<String>) -> Vec<Found> {
    let Some(groups) = different(job, value) else { return Vec::new() };
    let shown = groups.iter().map(|(value, nodes)| format!("{value} on {}", nodes.join(", ")));
    let evidence = shown.collect::<Vec<_>>().join("; ");
    let at = groups.into_iter().skip(1).flat_map(|(_, nodes)| nodes).collect();
    vec![Found { at, what: what.to_owned(), evidence, fix: fix.to_owned() }]
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

/// A fault at its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) check: &'static str,
    pub(crate) level: Level,
    pub(crate) at: Vec<String>,
    pub(crate) what: String,
    pub(crate) evidence: String,
    pub(crate) fix: String,
}

/// All checks, by subject.
pub(crate) const CHECKS: [&[Check]; 9] = [
    nodes::NODES,
    network::NETWORK,
    names::NAMES,
    variables::VARIABLES,
    resources::FILES,
    resources::LIMITS,
    devices::SOFTWARE,
    devices::GPUS,
    fabric::FABRIC,
];

/// All faults of a job, the worst first. Nodes with the same fault share a finding.
pub(crate) fn examine(job: &Job) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    for Check { name, level, find, .. } in CHECKS.into_iter().flatten() {
        for Found { at, what, evidence, fix } in find(job) {
            let same = |other: &&mut Finding| {
                (other.check, &other.what, &other.evidence, &other.fix) == (*name, &what, &evidence, &fix)
            };
            match findings.iter_mut().find(same) {
                Some(finding) => finding.at.extend(at),
                None => findings.push(Finding { check: name, level: *level, at, what, evidence, fix }),
            }
        }
    }
    findings.sort_by_key(|finding| finding.level);
    findings
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::testing::{FAULTS, job};
    use super::*;

    #[test]
    fn writes_sizes_in_the_unit_that_fits() {
        assert_eq!([bytes(64 * MIB), bytes(3 * GIB / 2), bytes(0)], ["64.0 MiB", "1.5 GiB", "0.0 MiB"]);
    }

    fn names(job: &Job) -> Vec<&'static str> {
        examine(job).iter().map(|finding| finding.check).collect()
    }

    #[test]
    fn finds_nothing_on_healthy_nodes() {
        for size in [1, 2, 3] {
            assert_eq!(examine(&job(size)), [], "{size} nodes");
        }
    }

    #[test]
    fn finds_each_fault_that_was_made_and_no_other_error() {
        for (name, make) in FAULTS {
            let mut job = job(3);
            make(&mut job);
            let findings = examine(&job);
            assert!(findings.iter().any(|finding| finding.check == *name), "{name} is not in {findings:#?}");
            let others = findings.iter().filter(|finding| finding.check != *name && finding.level == Level::Error);
            assert_eq!(others.map(|finding| finding.check).collect::<Vec<_>>(), [""; 0], "{name}");
            let finding = findings.iter().find(|finding| finding.check == *name).unwrap();
            for text in [&finding.what, &finding.evidence, &finding.fix] {
                assert!(!text.is_empty() && !text.ends_with('.'), "{name}: {text:?}");
            }
            assert!(!finding.at.is_empty(), "{name} is nowhere");
        }
    }

    #[test]
    fn every_check_has_a_fault_and_a_name_of_its_own() {
        let all: Vec<_> = CHECKS.into_iter().flatten().map(|check| check.name).collect();
        let made: BTreeSet<_> = FAULTS.iter().map(|(name, _)| *name).collect();
        assert_eq!(all.iter().copied().collect::<BTreeSet<_>>(), made);
        assert_eq!(all.len(), made.len());
    }

    #[test]
    fn nodes_with_the_same_fault_share_a_finding_and_errors_come_first() {
        let mut job = job(3);
        for node in &mut job.nodes {
            node.variables.insert("CUDA_LAUNCH_BLOCKING".into(), "1".into());
        }
        job.nodes[1].limits.open_files = Some(64);
        let findings = examine(&job);
        assert_eq!(names(&job), ["open-files-low", "cuda-launch-blocking"]);
        assert_eq!(findings[1].at, ["n1", "n2", "n3"]);
    }
}
