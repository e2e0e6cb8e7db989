//! What a check is, and where it finds faults.

use crate::doctor::facts::{Job, Node};
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_sizes_in_the_unit_that_fits() {
        assert_eq!([bytes(64 * MIB), bytes(3 * GIB / 2), bytes(0)], ["64.0 MiB", "1.5 GiB", "0.0 MiB"]);
    }
}
