//! The verdict: programs that fail on purpose, as the first and as a middle rank, and whom and what the report's first line names.
//!
//! [`bank`] has the failures, one list for each family; [`places`] those that need more than a program: several ranks, cgroups, nodes.
//! [`launcher`] has those before a worker starts, [`torch`] has PyTorch's, and [`torchrun`] compares.

mod bank;
mod launcher;
mod places;
mod torch;
mod torchrun;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::run::site::Site;
use crate::running::Ended;

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
        let ended = site.run(&["--standalone", "--nproc-per-node=3", "sh", "-c", &script.replace('$', "$$")]);
        assert_verdict(&ended, rank, bad.says);
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
