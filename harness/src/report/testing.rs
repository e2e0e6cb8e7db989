//! A small report like those of the commands, for tests of its formats.

use std::time::{Duration, SystemTime};

use super::{Case, Finding, HostInfo, Report, Table, Verdict};
use crate::history::testing::two_nodes;

/// A text with dangerous characters.
pub(super) const HOSTILE: &str =
    "</script><script>alert(1)</script>\"'&lt;]]>--> \u{1b}[31m\0\u{fffe}{% raw %}</style></svg>";

/// Three cases, one for each verdict; the first has two failures, of a rank and of a node.
pub(super) fn sample() -> Report {
    Report {
        title: "Lockstep inject: 3 scenarios".into(),
        command: "lockstep inject --seed 7 --report report.html".into(),
        started: SystemTime::UNIX_EPOCH + Duration::from_millis(1_770_091_506_250),
        took: Duration::from_millis(14_900),
        machine: machine(),
        not_verified: machine().not_verified(),
        cases: vec![killed(), torn(), cut()],
    }
}

fn machine() -> HostInfo {
    HostInfo {
        host: "atlas".into(),
        kernel: "Linux 6.8.0".into(),
        architecture: "x86_64".into(),
        cores: 2,
        processor: Some("Some CPU at 2.4 GHz".into()),
        memory: Some(8 << 30),
        gpus: vec![],
    }
}

fn finding(claim: &str, verdict: Verdict, evidence: &str) -> Finding {
    Finding { claim: claim.into(), verdict, evidence: evidence.into() }
}

fn killed() -> Case {
    Case {
        name: "kill-one-then-lose-a-node".into(),
        shows: "Training survives the kill of a worker and then the loss of a whole node".into(),
        findings: vec![
            finding(
                "The final weights are the same bits as without the faults",
                Verdict::Passed,
                "8 tensors, 105,866 values on each of 2 ranks: no bit differs",
            ),
            finding("At most 10 steps are lost at a time", Verdict::Passed, "5 and 4 steps"),
        ],
        took: Duration::from_millis(9_300),
        seed: Some(7),
        replay: Some("lockstep inject kill-one-then-lose-a-node --seed 7".into()),
        timeline: Some(two_nodes().timeline()),
        tables: vec![Table {
            title: "Loss".into(),
            headings: ["epoch", "loss", "accuracy"].map(Into::into).to_vec(),
            rows: vec![
                ["0", "0.4121", "88.20 %"].map(Into::into).to_vec(),
                ["1", "0.2077", "93.95 %"].map(Into::into).to_vec(),
            ],
        }],
        log: vec!["[default1]: injected: SIGKILL".into(), "rank 1 ended by SIGKILL, 2 restarts left".into()],
    }
}

fn torn() -> Case {
    Case {
        name: "tear-newest-snapshot".into(),
        shows: "A torn snapshot is skipped, and the one before it is taken".into(),
        findings: vec![
            finding("The torn snapshot is named", Verdict::Passed, "step-0-10.safetensors: 212,000 of 424,000 bytes"),
            finding(
                "The final weights are the same bits as without the faults",
                Verdict::Failed,
                "rank 0, fc.weight[3]: 0.12500001 instead of 0.125 (bits 0x3e000001, 0x3e000000)",
            ),
        ],
        took: Duration::from_millis(5_150),
        seed: Some(7),
        replay: Some("lockstep inject tear-newest-snapshot --seed 7".into()),
        log: vec!["resume skips a torn snapshot: step-0-10.safetensors".into()],
        ..Case::default()
    }
}

fn cut() -> Case {
    Case {
        name: "cut-network".into(),
        shows: "A cut network is noticed, and named".into(),
        findings: vec![finding(
            "The message names the node that cannot be reached",
            Verdict::NotVerified,
            "network namespaces need a user who may make them",
        )],
        took: Duration::from_millis(12),
        ..Case::default()
    }
}
