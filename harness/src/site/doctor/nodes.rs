//! Checks of the job as a whole: who did not answer, and what must be the same everywhere.

use lockstep_contract::rules::Level::{Error, Warning};
use lockstep_contract::rules::Rule;

use super::examples;
use super::facts::{JobFacts, Missing, Outcome, Silent};
use super::rules::{NodeFinding, Nodes, RULE, found, unequal};

pub(super) const NODES: &[Rule<Nodes>] = &[
    Rule {
        name: "node-silent",
        level: Error,
        why: "a node of the job did not join, so training would wait for it, too",
        source: "half of the deadline, then a TCP connection from the first node",
        wrong: |job| examples::silent(job, Missing::Facts, Outcome::TimedOut(6)),
        find: |job| missing(job, Missing::Facts),
        ..RULE
    },
    Rule {
        name: "node-stopped",
        level: Error,
        why: "a node joined and then stopped answering: it is overloaded, paused, or lost",
        source: "the deadline, then a TCP connection from the first node",
        wrong: |job| examples::silent(job, Missing::Results, Outcome::Refused),
        find: |job| missing(job, Missing::Results),
        ..RULE
    },
    Rule {
        name: "head-unreachable",
        level: Error,
        why: "this node cannot reach the first one, where all meet, so a job would lack it",
        source: "a connection to the first node",
        wrong: |job| examples::silent(job, Missing::Head, Outcome::Failed("no route to host".into())),
        find: |job| missing(job, Missing::Head),
        ..RULE
    },
    Rule {
        name: "host-name-twice",
        level: Error,
        why: "Gloo and the launcher give other nodes the host name, which then leads to the wrong node",
        source: "uname(2) on each node",
        wrong: |job| job.nodes[2].host = "n2".into(),
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
        ..RULE
    },
    Rule {
        name: "program-differs",
        level: Error,
        why: "launchers of different builds may not understand each other",
        source: "the version and the CRC-32 of the program that runs on each node",
        wrong: |job| job.nodes[2].program.checksum = Some("00000000".into()),
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
        ..RULE
    },
    Rule {
        name: "architecture-differs",
        level: Error,
        why: "a program is built for one architecture",
        source: "uname(2) on each node",
        wrong: |job| job.nodes[2].architecture = "aarch64".into(),
        find: |job| {
            let fix = "build on each architecture, and choose nodes of one: sbatch --constraint, or another partition";
            unequal(job, "the nodes have different architectures", fix, |node| Some(node.architecture.clone()))
        },
        ..RULE
    },
    Rule {
        name: "clock-differs",
        level: Warning,
        why: "make builds too much or too little, munge and TLS refuse connections, and the times in logs of several nodes do not match",
        source: "the answers to TCP probes, which contain the time; the offset must exceed the uncertainty by 1 s",
        wrong: |job| {
            for link in job.links.iter_mut().filter(|link| link.to == "n3") {
                link.outcome = Outcome::Answered { by: "n3".into(), ahead: -3_200_000, uncertain: 400 };
            }
        },
        find: clocks,
        ..RULE
    },
];

/// Offsets above this are reported, in microseconds.
const CLOCK: i64 = 1_000_000;

fn missing(job: &JobFacts, what: Missing) -> Vec<NodeFinding> {
    job.silent.iter().filter(|silent| silent.missing == what).map(describe).collect()
}

fn describe(silent: &Silent) -> NodeFinding {
    let Silent { name, missing, waited, attempt } = silent;
    let what = match missing {
        Missing::Facts => format!("{name} did not join within {waited} s"),
        Missing::Results => format!("{name} joined, but had not finished after {waited} s"),
        Missing::Head => format!("the first node, {name}, cannot be reached, or has ended"),
    };
    let evidence = match attempt {
        Some(attempt) => format!("a TCP connection to {}: {}", attempt.to, attempt.outcome),
        None => format!("doctor waited {waited} s for it"),
    };
    let fix = match attempt.as_ref().map(|attempt| &attempt.outcome) {
        Some(Outcome::Refused) => format!(
            "{name} is up: see there whether doctor was started, hangs, or printed an error (`ssh {name} ps aux`)"
        ),
        Some(Outcome::TimedOut(_)) => {
            format!(
                "no packet comes back: `ip -brief address` on {name}, its cable, and firewalls on the way (`nft list ruleset`)"
            )
        }
        Some(Outcome::Failed(_)) => format!("`getent hosts {name}` and `ip route` on the node that reports it"),
        _ => format!("start doctor on {name} as well, and read what it prints there"),
    };
    found(name, [what, evidence, fix])
}

/// Offsets from the first node.
fn clocks(job: &JobFacts) -> Vec<NodeFinding> {
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
