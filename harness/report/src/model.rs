//! What a report says: what ran, on which machine, and each claim with its verdict.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::formatting::{command_line, count};
use crate::timeline::Timeline;

/// What a command ran and found.
#[derive(Clone, Debug)]
pub struct Report {
    /// A short title: `Lockstep inject: 20 scenarios`.
    pub title: String,
    /// The command line, as one could type it.
    pub command: String,
    /// When the command began.
    pub started: SystemTime,
    /// How long it took.
    pub took: Duration,
    pub machine: HostInfo,
    /// What this machine could not run at all, each with its reason. Gaps are never silent.
    pub not_verified: Vec<String>,
    /// Tables of all cases together.
    pub tables: Vec<Table>,
    /// In the order in which they ran.
    pub cases: Vec<ReportCase>,
}

/// One thing that ran: a scenario, a lab, a run.
#[derive(Clone, Debug, Default)]
pub struct ReportCase {
    /// Unique in the report, as on the command line: `kill-one`.
    pub name: String,
    /// What it shows, as a sentence without its full stop.
    pub shows: String,
    /// The claims, with their verdicts.
    pub findings: Vec<Finding>,
    /// How long it took.
    pub took: Duration,
    /// The seed of its random numbers.
    pub seed: Option<u64>,
    /// The command that runs only this case again.
    pub replay: Option<String>,
    /// The history of its ranks.
    pub timeline: Option<Timeline>,
    /// Additional tables of numbers.
    pub tables: Vec<Table>,
    /// The last lines of its output.
    pub log: Vec<String>,
}

/// A table of numbers, or of verdicts' signs ([`Verdict::symbol`]), which words may follow.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Table {
    /// The table's title.
    pub title: String,
    /// One for each column.
    pub headings: Vec<String>,
    /// Each row has as many cells as there are headings.
    pub rows: Vec<Vec<String>>,
}

impl Report {
    /// A report of this command on this machine.
    pub fn here(title: &str, started: SystemTime, took: Duration, cases: Vec<ReportCase>) -> Report {
        let machine = HostInfo::here();
        let untried = cases.iter().filter(|case| case.verdict() == Verdict::NotVerified && case.timeline.is_none());
        let reasons =
            untried.flat_map(|case| case.findings.iter().map(|finding| format!("{}: {}", case.name, finding.evidence)));
        let not_verified = machine.not_verified().into_iter().chain(reasons).collect();
        let (title, command, tables) = (title.into(), command_line(), Vec::new());
        Report { title, command, started, took, machine, not_verified, tables, cases }
    }

    /// The verdict on all cases together. A report without cases shows nothing.
    pub fn verdict(&self) -> Verdict {
        overall(self.cases.iter().map(ReportCase::verdict))
    }
}

impl ReportCase {
    /// The verdict on all findings together. A case without findings shows nothing.
    pub fn verdict(&self) -> Verdict {
        overall(self.findings.iter().map(|finding| finding.verdict))
    }
}

/// A claim with its verdict.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    pub claim: String,
    pub verdict: Verdict,
    /// The numbers that show it, or what is wrong, or why this run cannot decide it.
    pub evidence: String,
}

/// The verdict on a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Verdict {
    /// The evidence shows it.
    #[serde(rename = "passed")]
    Passed,
    /// The evidence contradicts it, or is missing although the run is over.
    #[serde(rename = "FAILED")]
    Failed,
    /// This run cannot decide it.
    #[serde(rename = "not verified here")]
    NotVerified,
    /// Somebody has yet to do it, such as a learner a task.
    #[serde(rename = "open")]
    Open,
}

/// Why a claim was not shown.
#[derive(Debug)]
pub enum Unproven {
    /// The evidence contradicts it.
    Failed(String),
    /// This run cannot decide it.
    NotVerified(String),
}

impl Verdict {
    /// All verdicts, the good one first.
    pub const ALL: [Verdict; 4] = [Verdict::Passed, Verdict::Failed, Verdict::NotVerified, Verdict::Open];

    /// A differently shaped sign for each, so that colour is never the only distinction.
    pub fn symbol(self) -> &'static str {
        match self {
            Verdict::Passed => "✓",
            Verdict::Failed => "✗",
            Verdict::NotVerified => "?",
            Verdict::Open => "·",
        }
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Verdict::Passed => "passed",
            Verdict::Failed => "FAILED",
            Verdict::NotVerified => "not verified here",
            Verdict::Open => "open",
        })
    }
}

/// Most checks find contradictions, so `?` converts a plain sentence into one.
impl From<String> for Unproven {
    fn from(contradiction: String) -> Self {
        Unproven::Failed(contradiction)
    }
}

impl Finding {
    /// The finding of a check of `claim`.
    pub fn of(claim: String, proof: Result<String, Unproven>) -> Self {
        let (verdict, evidence) = match proof {
            Ok(evidence) => (Verdict::Passed, evidence),
            Err(Unproven::Failed(evidence)) => (Verdict::Failed, evidence),
            Err(Unproven::NotVerified(evidence)) => (Verdict::NotVerified, evidence),
        };
        Finding { claim, verdict, evidence }
    }
}

/// Failed if any failed, otherwise not verified if any was not verified or there are no findings, otherwise open if any is open.
pub fn overall(verdicts: impl IntoIterator<Item = Verdict>) -> Verdict {
    let verdicts: Vec<_> = verdicts.into_iter().collect();
    let worst =
        [Verdict::Failed, Verdict::NotVerified, Verdict::Open].into_iter().find(|verdict| verdicts.contains(verdict));
    worst.unwrap_or(if verdicts.is_empty() { Verdict::NotVerified } else { Verdict::Passed })
}

/// Facts that influence the numbers of a report.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct HostInfo {
    /// The host name.
    pub host: String,
    /// As `uname -sr` writes it: `Linux 6.8.0`.
    pub kernel: String,
    /// As `uname -m` writes it: `x86_64`.
    pub architecture: String,
    /// Processors that this process may use.
    pub cores: usize,
    /// The processor's model, if the kernel names it.
    pub processor: Option<String>,
    /// In bytes.
    pub memory: Option<u64>,
    /// The model of each NVIDIA GPU.
    pub gpus: Vec<String>,
}

impl HostInfo {
    /// This machine.
    pub fn here() -> Self {
        let uname = rustix::system::uname();
        let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        HostInfo {
            host: text(uname.nodename()),
            kernel: format!("{} {}", text(uname.sysname()), text(uname.release())),
            architecture: text(uname.machine()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            processor: processor(&read("/proc/cpuinfo")),
            memory: field(&read("/proc/meminfo"), "MemTotal").and_then(|text| bytes(&text)),
            gpus: gpus(Path::new("/proc/driver/nvidia/gpus")),
        }
    }

    /// What no run on this machine can show.
    pub fn not_verified(&self) -> Vec<String> {
        let gpu = "training on GPUs over NCCL: this machine has no NVIDIA GPU";
        if self.gpus.is_empty() { vec![gpu.into()] } else { vec![] }
    }

    /// In one line: `2 cores, 7.8 GiB, no GPU, Linux 6.8.0 (x86_64)`.
    pub fn summary(&self) -> String {
        let cores = count(self.cores, "core");
        let memory = self.memory.map(|bytes| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)));
        let gpus = match self.gpus.as_slice() {
            [] => "no GPU".to_owned(),
            [one] => one.clone(),
            [first, ..] => format!("{} GPUs ({first})", self.gpus.len()),
        };
        let kernel = format!("{} ({})", self.kernel, self.architecture);
        [Some(cores), memory, Some(gpus), Some(kernel)].into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

/// The value after `name` and a colon, on the first line that has it.
fn field(text: &str, name: &str) -> Option<String> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'))?;
    Some(value.trim().to_owned()).filter(|value| !value.is_empty())
}

/// The processor's model. AArch64's kernel writes numbers instead of a name, those of the register MIDR_EL1.
fn processor(cpuinfo: &str) -> Option<String> {
    /// Implementer and part (Linux, arch/arm64/include/asm/cputype.h).
    const PARTS: [(&str, &str, &str); 8] = [
        ("0x41", "0xd0c", "Neoverse-N1"),
        ("0x41", "0xd40", "Neoverse-V1"),
        ("0x41", "0xd49", "Neoverse-N2"),
        ("0x41", "0xd4f", "Neoverse-V2"), // NVIDIA Grace
        ("0x46", "0x001", "A64FX"),
        ("0x48", "0xd01", "TSV110"),
        ("0xc0", "0xac3", "Ampere-1"),
        ("0xc0", "0xac4", "Ampere-1A"),
    ];
    field(cpuinfo, "model name").or_else(|| {
        let (implementer, part) = (field(cpuinfo, "CPU implementer")?, field(cpuinfo, "CPU part")?);
        let name = PARTS.iter().find(|(of, known, _)| *of == implementer && *known == part).map(|(.., name)| *name);
        Some(name.map_or_else(|| format!("implementer {implementer}, part {part}"), str::to_owned))
    })
}

/// Parses `8167840 kB`, the format of proc(5).
fn bytes(text: &str) -> Option<u64> {
    text.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The driver has a folder for each card with a file that names its model.
fn gpus(folder: &Path) -> Vec<String> {
    let Ok(cards) = fs::read_dir(folder) else { return vec![] };
    let mut paths: Vec<_> = cards.flatten().map(|card| card.path()).collect();
    paths.sort();
    let model = |text: String| field(&text, "Model").unwrap_or_else(|| "unknown GPU".into());
    paths.iter().map(|path| model(fs::read_to_string(path.join("information")).unwrap_or_default())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Verdict::{Failed, NotVerified, Open, Passed};

    #[test]
    fn uses_the_same_verdicts_for_people_and_programs() {
        for verdict in Verdict::ALL {
            assert_eq!(serde_json::to_value(verdict).unwrap(), verdict.to_string());
        }
    }

    #[test]
    fn one_failure_fails_all_and_no_findings_are_not_verified() {
        assert_eq!(overall([Passed, Passed]), Passed);
        assert_eq!(overall([Passed, NotVerified, Failed]), Failed);
        assert_eq!(overall([Passed, NotVerified, Open]), NotVerified);
        assert_eq!((overall([Passed, Open]), overall([Open, Failed])), (Open, Failed));
        assert_eq!(overall([]), NotVerified);
    }

    #[test]
    fn reads_the_kernels_tables() {
        let table = "processor\t: 0\nmodel name\t: Some CPU: 9\nmodel name\t: Another\n";
        assert_eq!(processor(table).as_deref(), Some("Some CPU: 9"));
        let arm =
            "processor\t: 0\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd4f\n";
        assert_eq!(processor(arm).as_deref(), Some("Neoverse-V2"));
        assert_eq!(processor(&arm.replace("0xd4f", "0xfff")).as_deref(), Some("implementer 0x41, part 0xfff"));
        assert_eq!(processor("processor\t: 0\n"), None);
        assert_eq!(field("MemTotal:        2048 kB\n", "MemTotal").and_then(|text| bytes(&text)), Some(2_097_152));
        assert_eq!((field("", "MemTotal"), bytes("many kB"), bytes(&format!("{} kB", u64::MAX))), (None, None, None));
    }

    #[test]
    fn names_each_card_that_the_driver_lists() {
        let dir = tempfile::tempdir().unwrap();
        for (card, text) in [("0000:02:00.0", ""), ("0000:01:00.0", "Model: \t\t NVIDIA H200\nIRQ: 7\n")] {
            fs::create_dir(dir.path().join(card)).unwrap();
            fs::write(dir.path().join(card).join("information"), text).unwrap();
        }
        assert_eq!(gpus(dir.path()), ["NVIDIA H200", "unknown GPU"]);
        assert!(gpus(&dir.path().join("none")).is_empty());
    }

    #[test]
    fn says_what_cannot_be_shown_without_a_gpu() {
        let mut machine =
            HostInfo { cores: 1, memory: Some(3 << 29), kernel: "Linux 6.1".into(), ..HostInfo::default() };
        machine.architecture = "x86_64".into();
        assert_eq!(machine.summary(), "1 core, 1.5 GiB, no GPU, Linux 6.1 (x86_64)");
        assert_eq!(machine.not_verified().len(), 1);
        machine.gpus = vec!["NVIDIA H200".into(); 2];
        assert!(machine.not_verified().is_empty() && machine.summary().contains("2 GPUs (NVIDIA H200)"));
        assert!(HostInfo::here().cores > 0 && HostInfo::here().kernel.starts_with("Linux "));
    }
}
