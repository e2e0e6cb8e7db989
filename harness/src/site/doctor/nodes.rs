//! Checks of the job as a whole: who did not answer, and what must be the same everywhere.

use super::facts::{Job, Missing, Outcome, Silent};
use super::rules::{Check, Found, found, unequal};
use crate::report::Level;

pub(super) const NODES: &[Check] = &[
    Check {
        name: "node-silent",
        level: Level::Error,
        why: "a node of the job did not come to the meeting, so a job would wait for it, too",
        source: "half of the deadline, then a TCP connection from the first node",
        find: |job| missing(job, Missing::Facts),
    },
    Check {
        name: "node-stopped",
        level: Level::Error,
        why: "a node came and then said no more: it is overloaded, paused, or was lost",
        source: "the deadline, then a TCP connection from the first node",
        find: |job| missing(job, Missing::Results),
    },
    Check {
        name: "head-unreachable",
        level: Level::Error,
        why: "this node cannot reach the first one, where all meet, so it would be missing in a job",
        source: "a connection to the first node",
        find: |job| missing(job, Missing::Head),
    },
    Check {
        name: "host-name-twice",
        level: Level::Error,
        why: "Gloo and the launcher tell others the host name, which then leads to the wrong node",
        source: "uname(2) on each node",
        find: |job| {
            let same = |at: usize| job.nodes[..at].iter().find(|other| other.host == job.nodes[at].host);
            let twice = (0..job.nodes.len()).filter_map(|at| Some((&job.nodes[at], same(at)?)));
            let twice = twice.map(|(node, other)| {
                found(
                    &node.name,
                    [
                        format!("{} and {} have the same host name {}", other.name, node.name, node.host),
                        format!("`uname -n` on both is {}", node.host),
                        "hostnamectl set-hostname NAME, another one on each node; start one doctor on each node"
                            .to_owned(),
                    ],
                )
            });
            twice.collect()
        },
    },
    Check {
        name: "program-differs",
        level: Level::Error,
        why: "launchers of different builds may not understand each other",
        source: "the version and the CRC-32 of the program that runs on each node",
        find: |job| {
            unequal(
                job,
                "the nodes run different builds of lockstep",
                "start the same file on all nodes, from a shared folder; `which -a lockstep` shows what PATH leads to",
                |node| {
                    let program = &node.program;
                    Some(format!("{} ({})", program.version, program.checksum.as_ref()?))
                },
            )
        },
    },
    Check {
        name: "architecture-differs",
        level: Level::Error,
        why: "a program is built for one architecture",
        source: "uname(2) on each node",
        find: |job| {
            let fix = "build on each architecture, and choose nodes of one: sbatch --constraint, or another partition";
            unequal(job, "the nodes have different architectures", fix, |node| Some(node.architecture.clone()))
        },
    },
    Check {
        name: "clock-differs",
        level: Level::Warning,
        why: "make builds too much or too little, munge and TLS refuse, and logs of several nodes do not fit together",
        source: "the answers to TCP probes, which contain the time; the offset must exceed the uncertainty by 1 s",
        find: clocks,
    },
];

/// Offsets above this are reported, in microseconds.
const CLOCK: i64 = 1_000_000;

fn missing(job: &Job, what: Missing) -> Vec<Found> {
    job.silent.iter().filter(|silent| silent.missing == what).map(describe).collect()
}

fn describe(silent: &Silent) -> Found {
    let Silent { name, missing, waited, knock } = silent;
    let what = match missing {
        Missing::Facts => format!("{name} did not come within {waited} s"),
        Missing::Results => format!("{name} came, and had not finished after {waited} s"),
        Missing::Head => format!("the first node, {name}, cannot be reached, or went away"),
    };
    let evidence = match knock {
        Some(knock) => format!("a TCP connection to {}: {}", knock.to, knock.outcome),
        None => format!("it was waited for, {waited} s"),
    };
    let fix = match knock.as_ref().map(|knock| &knock.outcome) {
        Some(Outcome::Refused) => format!(
            "{name} is up: see there whether doctor was started, hangs, or printed an error (`ssh {name} ps aux`)"
        ),
        Some(Outcome::TimedOut(_)) => {
            format!(
                "no packet comes back: `ip -brief address` on {name}, its cable, and firewalls on the way (`nft list ruleset`)"
            )
        }
        Some(Outcome::Failed(_)) => format!("`getent hosts {name}` and `ip route` on the node that reports it"),
        _ => format!("start doctor on {name}, too, and read what it prints there"),
    };
    found(name, [what, evidence, fix])
}

/// Offsets from the first node.
fn clocks(job: &Job) -> Vec<Found> {
    let Some(first) = job.nodes.first() else { return Vec::new() };
    let from_first = job.links.iter().filter(|link| link.from == first.name);
    let offsets = from_first.filter_map(|link| match &link.outcome {
        Outcome::Answered { ahead, uncertain, .. } => Some((&link.to, *ahead, *uncertain)),
        _ => None,
    });
    let mut best: Vec<(&String, i64, i64)> = Vec::new();
    for (node, ahead, uncertain) in offsets {
        match best.iter_mut().find(|(known, ..)| *known == node) {
            Some(known) if known.2 > uncertain => *known = (node, ahead, uncertain),
            Some(_) => {}
            None => best.push((node, ahead, uncertain)),
        }
    }
    let wrong =
        best.into_iter().filter(|(_, ahead, uncertain)| ahead.saturating_abs().saturating_sub(*uncertain) > CLOCK);
    let seconds = |micros: i64| micros as f64 / 1e6;
    let wrong = wrong.map(|(node, ahead, uncertain)| {
        let word = if ahead > 0 { "ahead of" } else { "behind" };
        found(
            node,
            [
                format!(
                    "the clock of {node} is {:.1} s {word} that of {}",
                    seconds(ahead.saturating_abs()),
                    first.name
                ),
                format!("its answer to a TCP probe, ± {:.3} s", seconds(uncertain)),
                "chronyc makestep, or timedatectl set-ntp true".to_owned(),
            ],
        )
    });
    wrong.collect()
}
