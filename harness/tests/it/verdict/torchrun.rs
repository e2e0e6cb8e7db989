//! The same failures under torchrun, for comparison: slow, and so only when asked for.
//!
//! `LOCKSTEP_PYTHON=… cargo nextest run --run-ignored only -E 'test(the_bank_under_torchrun)' --no-capture` prints, for each failure of
//! a middle rank, what both reports say, and how long after the first failure that the launcher saw its verdict was there.

use std::process::Command;

use lockstep_contract::events::{AgentEvent, read_agents};

use super::{Bad, bank, prepare};
use crate::run::site::Site;
use crate::run::torch::with_torch;
use crate::running::Running;

/// The rank that fails, of three.
const BAD: usize = 1;

/// What one launcher's report said.
struct Said {
    rank: bool,
    cause: bool,
    /// Its words for the cause.
    words: String,
}

impl Said {
    /// A cell of the table.
    fn cell(&self) -> String {
        let mark = |right: bool| if right { "right" } else { "no" };
        format!("rank {}, cause {}: {}", mark(self.rank), mark(self.cause), self.words.replace('|', "/"))
    }
}

/// Both launchers replace `$$` by `$`.
fn script(bad: &Bad) -> String {
    format!("[ $RANK = {BAD} ] || exec sleep 1000\nulimit -c 0\n{}", bad.script).replace('$', "$$")
}

fn under_lockstep(site: &Site, bad: &Bad) -> (Said, f64) {
    let words = ["--standalone", "--nproc-per-node=3", "sh", "-c", &script(bad)];
    let mut command = site.lockstep(&words);
    command.env(lockstep_contract::events::FOLDER, site.path("events"));
    let ended = Running::start(command).ended();
    let verdict = ended.err.lines().find(|line| line.starts_with("verdict: ")).unwrap_or_default().to_owned();
    let said = Said {
        rank: verdict.starts_with(&format!("verdict: rank {BAD} on ")),
        cause: bad.says.iter().all(|text| verdict.contains(text)),
        words: verdict
            .split(" (evidence")
            .next()
            .and_then(|text| text.splitn(3, ": ").nth(2))
            .unwrap_or(&verdict)
            .to_owned(),
    };
    (said, delay(site))
}

/// Seconds from the first failure that the agent saw to its verdict.
fn delay(site: &Site) -> f64 {
    let agents = read_agents(&site.path("events")).unwrap();
    let records = || agents.values().flat_map(|log| &log.records);
    let failed = |event: &AgentEvent| matches!(event, AgentEvent::Ended { code, stopped: false, .. } if *code != 0);
    let at = |is: &dyn Fn(&AgentEvent) -> bool| records().find(|record| is(&record.event)).map(|record| record.t);
    let (seen, judged) = (at(&failed), at(&|event| matches!(event, AgentEvent::Verdict(_))));
    judged.unwrap_or(f64::NAN) - seen.unwrap_or(f64::NAN)
}

/// Runs torchrun for each of these folders and failures, in one Python, which imports PyTorch once.
const TORCHRUN: &str = r#"
import json, os, sys, traceback
import torch.distributed.run as torchrun
for job in json.load(open(sys.argv[1])):
    pid = os.fork()
    if pid == 0:
        os.chdir(job["folder"])
        os.environ["TMPDIR"] = job["folder"]
        os.dup2(os.open("torchrun.err", os.O_WRONLY | os.O_CREAT, 0o644), 2)
        try:
            torchrun.main(job["args"])
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    os.waitpid(pid, 0)
"#;

fn under_torchrun(bank: &[(Bad, Site)], python: &str) -> Vec<Said> {
    let flags = ["--standalone", "--monitor-interval=0.1", "--nproc-per-node=3", "--no-python", "sh", "-c"];
    let jobs = bank.iter().map(|(bad, site)| {
        let args: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).chain([script(bad)]).collect();
        serde_json::json!({"folder": site.path(""), "args": args})
    });
    let all = Site::new();
    let jobs = all.file("jobs.json", &serde_json::Value::Array(jobs.collect()).to_string());
    let mut command = Command::new(python);
    command.args(["-c", TORCHRUN, &jobs]);
    all.prepare(&mut command);
    Running::start(command).ended().code(0);
    bank.iter().map(|(_, site)| of_torchrun(&site.read("torchrun.err"))).collect()
}

/// torchrun names a cause in the field `traceback` of its root cause: the traceback of an error file, or the signal. Its rank is that
/// of the first death.
fn of_torchrun(text: &str) -> Said {
    let root = text.split_once("Root Cause").map_or("", |(_, root)| root);
    let field = |name: &str| root.lines().find_map(|line| line.trim().strip_prefix(name)?.trim().strip_prefix(": "));
    let words = field("traceback").unwrap_or("no report").to_owned();
    let code = field("exitcode").and_then(|text| text.split(' ').next()).unwrap_or_default();
    Said {
        rank: field("rank").is_some_and(|rank| rank.starts_with(&format!("{BAD} "))),
        cause: !words.starts_with("To enable traceback") && words != "no report",
        words: format!("exit code {code}; {words}"),
    }
}

#[test]
#[ignore = "some minutes: starts torchrun for each failure"]
fn the_bank_under_torchrun() {
    let Some(python) = with_torch() else { return };
    let all = [bank::START, bank::ERRORS, bank::LIMITS, bank::SIGNALS, bank::WORDS].concat();
    let mut made: Vec<(Bad, Site)> = all.into_iter().map(|bad| (bad, Site::new())).collect();
    made.retain(|(bad, site)| bad.prepare.is_empty() || prepare(site, bad.prepare).status.success());
    let ours: Vec<(Said, f64)> = made.iter().map(|(bad, site)| under_lockstep(site, bad)).collect();
    let theirs = under_torchrun(&made, &python);
    println!("| failure | lockstep run | after | torchrun |\n|---|---|---|---|");
    for (((bad, _), (our, seconds)), their) in made.iter().zip(&ours).zip(&theirs) {
        println!("| {} | {} | {seconds:.2} s | {} |", bad.says[0], our.cell(), their.cell());
    }
    let count = |right: &dyn Fn(&Said) -> bool, all: &[&Said]| all.iter().filter(|said| right(said)).count();
    let slowest = ours.iter().map(|(_, seconds)| *seconds).fold(0.0, f64::max);
    let (ours, theirs): (Vec<&Said>, Vec<&Said>) =
        (ours.iter().map(|(said, _)| said).collect(), theirs.iter().collect());
    let of = |all: &[&Said]| {
        format!("{} ranks and {} causes", count(&|said| said.rank, all), count(&|said| said.cause, all))
    };
    println!(
        "of {}: lockstep run names {}, torchrun {}; the slowest verdict came after {slowest:.2} s",
        made.len(),
        of(&ours),
        of(&theirs)
    );
    assert!(made.len() > 40, "{}", made.len());
}
