//! The verdict: programs that fail on purpose, as the first and as a middle rank, and which rank and cause the report's first line names.
//!
//! - [`bank`] has the failures, one list for each family; [`places`] those that need more than a program: several ranks, cgroups, nodes.
//! - [`survived`] has what programs print and survive: put before each of these failures, it must not change the cause.
//! - Below are failures before a worker starts, those of unmodified PyTorch programs with Gloo, and a comparison with torchrun, which is slow
//!   and runs only when asked for: `LOCKSTEP_PYTHON=… cargo nextest run --run-ignored only -E 'test(the_bank_under_torchrun)' --no-capture`
//!   prints, for each failure of a middle rank, what both reports say, and how long after the first failure that the launcher saw its
//!   verdict was there.

mod bank;
mod places;
mod survived;

use std::net::TcpListener;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use lockstep_contract::events::{AgentEvent, read_agents};

use survived::Recorded;

use crate::run::nodes::AgentGroup;
use crate::run::site::Site;
use crate::run::torch::{start, with_torch};
use crate::running::{Ended, Running};

/// A failure on purpose. All texts are a shell's; `$PYTHON_EXEC` is Python.
#[derive(Clone, Copy)]
pub(crate) struct Bad {
    /// Made first, in the test's folder, by a shell; where that fails, the failure cannot be made here.
    pub(crate) prepare: &'static str,
    /// The script of the rank that fails.
    pub(crate) script: &'static str,
    /// What the verdict has to say.
    pub(crate) says: &'static [&'static str],
}

/// A failure that needs no preparation.
const fn bad(script: &'static str, says: &'static [&'static str]) -> Bad {
    Bad { prepare: "", script, says }
}

/// A failure with a preparation.
const fn made(prepare: &'static str, script: &'static str, says: &'static [&'static str]) -> Bad {
    Bad { prepare, script, says }
}

/// Runs each failure as the first and as the middle of three ranks; the others wait for ever.
fn check(bank: &[Bad]) {
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(bad) = bank.get(next.fetch_add(1, Ordering::Relaxed)) {
            check_one(bad);
        }
    };
    thread::scope(|scope| {
        let workers = [scope.spawn(work), scope.spawn(work)];
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
}

fn check_one(bad: &Bad) {
    let site = Site::new();
    if !bad.prepare.is_empty() {
        let prepared = prepare(&site, bad.prepare);
        if !prepared.status.success() {
            println!("not verified here: the verdict on `{}` ({})", bad.script, prepared.err.trim());
            return;
        }
    }
    for rank in [0, 1] {
        let script = format!("[ $RANK = {rank} ] || exec sleep 1000\nulimit -c 0\n{}", bad.script);
        let logs = site.path(&format!("logs-{rank}"));
        let log_dir = format!("--log-dir={}", logs.display());
        let words = ["--standalone", "--nproc-per-node=3", "--tee=3", &log_dir, "sh", "-c", &script.replace('$', "$$")];
        let ended = site.run(&words);
        assert_verdict(&ended, rank, bad.says);
        let recorded = Recorded::read(&logs, rank, &ended.err).unwrap_or_else(|| panic!("no logs: {ended}"));
        let changed = recorded.changed(|_, _| {});
        assert!(changed.is_empty(), "{} times another cause: {}", changed.len(), changed.join("\n"));
    }
}

/// Runs a shell's script in the test's folder.
fn prepare(site: &Site, script: &str) -> Ended {
    let mut command = std::process::Command::new("sh");
    command.args(["-e", "-c", script]);
    site.prepare(&mut command);
    // Where compilers have their settings.
    match std::env::var_os("HOME") {
        Some(home) => command.env("HOME", home),
        None => command.env_remove("HOME"),
    };
    crate::running::ended(&mut command)
}

/// The one verdict is on this rank and says all of this.
#[track_caller]
fn assert_verdict(ended: &Ended, rank: usize, says: &[&str]) {
    let verdicts: Vec<&str> = ended.err.lines().filter(|line| line.starts_with("verdict: ")).collect();
    assert_eq!(verdicts.len(), 1, "{ended}");
    assert!(verdicts[0].starts_with(&format!("verdict: rank {rank} on ")), "not rank {rank}: {ended}");
    for text in says {
        assert!(verdicts[0].contains(text), "`{text}` is not in the verdict:\n{ended}");
    }
}

#[test]
fn names_rank_and_cause_of_programs_that_cannot_start() {
    check(bank::START);
}

#[test]
fn names_rank_and_cause_of_errors_of_the_program() {
    check(bank::ERRORS);
}

#[test]
fn names_rank_and_cause_of_limits_and_files() {
    check(bank::LIMITS);
}

#[test]
fn names_rank_and_cause_of_signals() {
    check(bank::SIGNALS);
}

#[test]
fn names_rank_and_cause_of_failures_that_are_known_by_their_words() {
    check(bank::WORDS);
}

#[test]
fn the_bank_has_at_least_40_failures() {
    let banks = [bank::START, bank::ERRORS, bank::LIMITS, bank::SIGNALS, bank::WORDS];
    let count: usize = banks.iter().map(|bank| bank.len()).sum();
    assert!(count >= 40, "{count}");
}

#[test]
fn nobody_is_blamed_in_50_clean_runs() {
    run_clean(50);
}

#[test]
#[ignore = "some minutes; run with --run-ignored all (nextest) or --ignored"]
fn nobody_is_blamed_in_1000_clean_runs() {
    run_clean(1000);
}

/// Runs programs that succeed, whose output looks like failures.
fn run_clean(count: usize) {
    let next = AtomicUsize::new(0);
    let work = || {
        let site = Site::new();
        while next.fetch_add(1, Ordering::Relaxed) < count {
            let noise = "echo 'Traceback (most recent call last):' >&2; echo 'MemoryError' >&2; echo Killed";
            let ended = site.run(&["--standalone", "--nproc-per-node=2", "sh", "-c", noise]).code(0);
            assert!(!ended.err.contains("verdict"), "{ended}");
        }
    };
    thread::scope(|scope| {
        let workers = [scope.spawn(work), scope.spawn(work)];
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
}

// ---- failures of the launcher itself

/// The report's first line is a verdict on the launcher that says all of this, and the event file has it.
#[track_caller]
fn assert_launcher(site: &Site, ended: &Ended, says: &[&str]) {
    let first = ended.failure().lines().next().unwrap();
    assert!(first.starts_with("verdict: the launcher on "), "{ended}");
    for text in says {
        assert!(first.contains(text), "`{text}` is not in the verdict:\n{ended}");
    }
    let agents = read_agents(&site.path("events")).unwrap();
    let records = agents.values().flat_map(|log| &log.records);
    let verdicts = records.filter(|record| matches!(&record.event, AgentEvent::Verdict(it) if it.to_string() == first));
    assert_eq!(verdicts.count(), 1, "{agents:?}");
}

fn run(site: &Site, mut command: std::process::Command) -> Ended {
    command.env(lockstep_contract::events::FOLDER, site.path("events"));
    Running::start(command).ended().code(1)
}

#[test]
fn nodes_that_did_not_meet_are_the_launchers_failure() {
    let site = Site::new();
    let job = AgentGroup { conf: "join_timeout=3", ..AgentGroup::new(&site) };
    let ended = run(&site, job.c10d(0, &["--nnodes=2", "true"]));
    assert_launcher(&site, &ended, &["is the loopback address", "(evidence: 1 of 2 nodes came to the rendezvous at "]);
}

#[test]
fn a_port_in_use_is_the_launchers_failure_and_its_owner_is_named() {
    let site = Site::new();
    let taken = TcpListener::bind((&*site.address(0), 0)).unwrap();
    let endpoint = taken.local_addr().unwrap().to_string();
    let ended = run(&site, AgentGroup { endpoint, ..AgentGroup::new(&site) }.fixed(0, &["true"]));
    assert_launcher(&site, &ended, &[&format!("pid {}", std::process::id()), "advice: take another port"]);
}

#[test]
fn a_folder_for_logs_that_cannot_be_made_is_the_launchers_failure() {
    let site = Site::new();
    let file = site.file("file", "");
    let ended = run(&site, site.lockstep(&["--standalone", &format!("--log-dir={file}"), "true"]));
    assert_launcher(&site, &ended, &[&file, "evidence: its own message"]);
}

#[test]
fn a_full_disk_of_the_logs_is_named_where_the_worker_could_not_print_its_error() {
    let site = Site::new();
    let script = format!(
        "mkdir logs; exec unshare -m sh -c 'mount -t tmpfs -o size=16k none logs && {{ head -c 20000 /dev/zero > logs/fill 2>/dev/null; \
         exec {} run --standalone --redirects=3 --log-dir=logs sh -c \"echo hello || exit 1\"; }}'",
        crate::running::lockstep()
    );
    let ended = prepare(&site, &script);
    if !ended.err.contains("verdict: ") {
        println!("not verified here: the verdict on a full disk of the logs ({})", ended.err.trim());
        return;
    }
    assert_verdict(&ended, 0, &["the disk of its logs is full", "exit code 1; ", " has 0 of 16 KiB free"]);
}

// ---- programs with PyTorch

const RANKS: &str = r#"
import datetime, os, sys, time, torch, torch.distributed as dist
bad, how = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
tensor = torch.ones(4)
dist.all_reduce(tensor)
if dist.get_rank() == bad:
    if how == "raises":
        raise ValueError("no such layer")
    if how == "returns":
        os._exit(0)
    time.sleep(1000)
if how == "misses":
    # Rank 0 waits for the others; these wait for its answer, which may come late.
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=1 if dist.get_rank() == 0 else 120))
dist.all_reduce(tensor)
"#;

/// Rank 1 does not come to a broadcast. Each rank writes its flight recorder at its end, as NCCL's watchdog does: Gloo has none.
const RECORDED: &str = r#"
import datetime, os, time, torch, torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
rank, prefix = dist.get_rank(), os.environ["TORCH_FR_DUMP_TEMP_FILE"]
group = dist.new_group(timeout=datetime.timedelta(seconds=120))
dist.all_reduce(torch.ones(4), group=group)
dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=1), group)
def leave():
    with open(f"{prefix}{rank}.new", "wb") as file:
        file.write(_dump_fr_trace(includeStackTraces=False)) # which import half of PyTorch
    os.rename(f"{prefix}{rank}.new", f"{prefix}{rank}")
if rank == 1:
    leave()
    time.sleep(1000)
try:
    dist.broadcast(torch.ones(2, 5), 1, group=group)
except RuntimeError:
    leave()
    while not all(os.path.exists(f"{prefix}{other}") for other in range(3)):
        time.sleep(0.01)
    raise
"#;

#[test]
fn names_the_rank_that_the_flight_recorder_shows_behind_the_others() {
    let Some(python) = with_torch() else { return };
    let site = Site::new();
    let script = site.file("ranks.py", RECORDED);
    let mut command = site.lockstep(&["--standalone", "--stacks=never", "--nproc-per-node=3", &script]);
    command.env("TORCH_FR_BUFFER_SIZE", "100").env("TORCH_FR_DUMP_TEMP_FILE", site.path("trace_"));
    let ended = start(&python, command).ended().code(1);
    let says =
        ["it did not come to call 2, broadcast of [2, 5] Float, in which others waited", "flight recorder of 3 ranks"];
    assert_verdict(&ended, 1, &says);
    site.assert_no_process();
}

fn check_torch(bad: usize, how: &str, says: &[&str]) {
    let Some(python) = with_torch() else { return };
    let site = Site::new();
    let script = site.file("ranks.py", RANKS);
    let words = ["--standalone", "--stacks=never", "--nproc-per-node=3", &script, &bad.to_string(), how];
    let ended = start(&python, site.lockstep(&words)).ended().code(1);
    assert_verdict(&ended, bad, says);
    site.assert_no_process();
}

#[test]
fn names_the_rank_that_raised_while_the_others_reduced() {
    check_torch(1, "raises", &["ValueError: no such layer (", "ranks.py:9)"]);
}

#[test]
fn names_the_rank_that_returned_while_the_others_reduced() {
    check_torch(0, "returns", &["it returned with exit code 0 while other ranks still waited for it"]);
}

#[test]
fn names_the_rank_that_did_not_come_to_a_barrier() {
    check_torch(1, "misses", &["rank 1 did not come to a barrier for 1000 ms"]);
}

// ---- the same failures under torchrun

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
