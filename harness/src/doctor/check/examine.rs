//! All checks, and what they find in a job.

use serde::Serialize;

use super::found::{Check, Found};
use super::{fabric, files, gpus, limits, names, network, nodes, software, variables};
use crate::doctor::facts::Job;
use crate::report::Level;

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
    nodes::CHECKS,
    network::CHECKS,
    names::CHECKS,
    variables::CHECKS,
    files::CHECKS,
    limits::CHECKS,
    software::CHECKS,
    gpus::CHECKS,
    fabric::CHECKS,
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
