//! Spawn's guarantees, tested from outside: the program that these tests start is this executable.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::{env, fs, process};

use crate::{KillOnDrop, Test, finish, text, until_closed};

/// Before the names of the cases.
pub(crate) const CASE: &str = "spawn";

pub(crate) const TESTS: &[Test] = &[
    ("gives_every_worker_its_place_its_arguments_and_an_open_store", gives_places),
    ("keeps_the_programs_own_arguments_and_environment", keeps_arguments),
    ("passes_arguments_of_many_megabytes", passes_much),
    ("reports_a_workers_error_with_its_chain_and_stops_the_others", reports_error),
    ("adds_the_trace_when_backtraces_are_requested", adds_trace),
    ("reports_a_workers_panic_with_its_location_and_prints_it_once", reports_panic),
    ("reports_an_exit_code", reports_exit),
    ("counts_an_exit_with_0_before_the_end_as_a_failure", reports_exit_0),
    ("names_the_signal_that_killed_a_worker", names_signal),
    ("kills_a_worker_that_ignores_sigterm", kills_stubborn),
    ("lists_the_second_failure_as_also_failed", lists_second),
    ("blames_a_panic_although_a_peer_died_first", blames_the_panic),
    ("stops_all_workers_at_its_timeout", stops_at_timeout),
    ("leaves_no_worker_when_the_parent_is_killed", leaves_no_orphan),
    ("leaves_no_worker_when_one_cannot_be_started", leaves_none_half_started),
    ("skips_the_calls_that_the_parent_has_finished", skips_finished),
    ("returns_a_calls_failure_in_the_workers_of_the_next_call", repeats_failure),
    ("refuses_a_worker_that_reaches_another_call", refuses_elsewhere),
    ("reports_a_worker_that_never_reaches_the_call", reports_never),
    ("reports_an_error_before_the_call", reports_early_error),
    ("refuses_to_spawn_inside_a_worker", refuses_nested),
    ("refuses_to_spawn_in_a_program_that_a_worker_started", refuses_grandchild),
    ("refuses_to_spawn_while_another_spawn_runs", refuses_concurrent),
    ("refuses_to_spawn_under_a_launcher_with_exit_code_2", refuses_launcher),
    ("refuses_invalid_numbers_of_processes", refuses_absurd),
    ("reports_arguments_that_json_cannot_represent", reports_bad_args),
    ("reports_a_store_that_does_not_open", reports_store),
    ("runs_although_its_executable_was_deleted", runs_deleted),
    ("records_the_errors_and_panics_of_a_plain_program_for_its_launcher", records_for_launcher),
];

/// Runs a case that makes its own assertions, and returns its output.
fn passes(command: Command) -> String {
    let output = finish(command);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{}\n{stdout}\n{stderr}", output.status);
    assert_eq!(stderr, "", "nothing else is printed");
    stdout
}

/// Runs a case that ends with an error; returns its code and its stderr.
fn fails(command: Command) -> (Option<i32>, String) {
    let output = finish(command);
    (output.status.code(), text(&output.stderr))
}

fn gives_places() {
    let mut command = program("places");
    command.env_remove("OMP_NUM_THREADS").stdin(process::Stdio::piped());
    let out = passes(command);
    let mut lines: Vec<_> = out.lines().collect();
    lines.sort_unstable();
    let line = |rank| format!("rank {rank} of 3, 3 here: 7 text, 1 thread, stdin \"\"");
    assert_eq!(lines, [line(0), line(1), line(2)]);
}

fn keeps_arguments() {
    let mut command = program("arguments");
    command.arg0("another name").args(["--flag", "with space", ""]).env("OWN", "kept");
    passes(command);
}

fn passes_much() {
    passes(program("much"));
}

fn reports_error() {
    assert_eq!(
        passes(program("error")),
        "process 1 terminated with the following error: cannot read part 3: no such shard\n\
         stopped because of it: process 0 (SIGTERM)\n"
    );
}

fn adds_trace() {
    let mut command = program("error");
    command.env("RUST_BACKTRACE", "1");
    let out = passes(command);
    let (_, trace) = out.split_once("\ntrace of process 1:\n").expect("a trace");
    // `raise` if it was inlined, `spawn::raise` otherwise.
    assert!(trace.lines().any(|line| line.ends_with("raise")), "{trace}");
}

fn reports_panic() {
    let out = passes(program("panic"));
    assert!(out.starts_with("process 1 panicked at "), "{out}");
    assert!(out.contains(": index 7 is out\nstopped because of it: process 0 (SIGTERM)\n"), "{out}");
}

fn reports_exit() {
    passes(program("exit"));
}

fn reports_exit_0() {
    passes(program("exit 0"));
}

fn names_signal() {
    let out = passes(program("signal"));
    assert!(out.starts_with("process 1 terminated with signal SIGKILL"), "{out}");
}

fn kills_stubborn() {
    // An ignored signal stays ignored in the workers.
    passes(program_after("trap '' TERM", "stubborn"));
}

fn lists_second() {
    let out = passes(program_after("trap '' TERM", "second"));
    let lines: Vec<_> = out.lines().collect();
    assert!(lines[0].starts_with("process 1 terminated with signal SIGKILL"), "{out}");
    assert_eq!(lines[1], "also failed: process 0 terminated with the following error: peer 1 is gone");
}

fn blames_the_panic() {
    let out = passes(program("slow unwinding"));
    assert!(
        out.ends_with("also failed: process 0 terminated with the following error: peer 1 said goodbye\n"),
        "{out}"
    );
}

fn stops_at_timeout() {
    passes(program("timeout"));
}

fn leaves_no_orphan() {
    let mut parent = KillOnDrop(program("forever").spawn().unwrap());
    let mut out = BufReader::new(parent.0.stdout.take().unwrap());
    for _ in 0..2 {
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        assert_eq!(line, "up\n");
    }
    parent.0.kill().unwrap();
    until_closed(out);
}

fn leaves_none_half_started() {
    let out = passes(program_after("ulimit -n 60", "many"));
    assert!(out.contains("cannot start process") && out.contains("of 64: Too many open files"), "{out}");
}

fn skips_finished() {
    let out = passes(program("two calls"));
    let mut lines: Vec<_> = out.lines().collect();
    lines[..2].sort_unstable();
    lines[2..].sort_unstable();
    assert_eq!(lines, ["first 0 1", "first 1 1", "second 0 2", "second 1 2"]);
}

fn repeats_failure() {
    passes(program("second after failure"));
}

fn refuses_elsewhere() {
    let out = passes(program("elsewhere"));
    assert!(out.contains("this process reached the call of spawn at") && out.contains("its parent is at"), "{out}");
}

fn reports_never() {
    let out = passes(program("never"));
    assert!(out.contains("ended without reaching the call of spawn"), "{out}");
}

fn reports_early_error() {
    let output = finish(program("early error"));
    assert!(output.status.success(), "{}", text(&output.stderr));
}

fn refuses_nested() {
    passes(program("nested"));
}

fn refuses_grandchild() {
    passes(program("grandparent"));
}

fn refuses_concurrent() {
    passes(program("concurrent"));
}

fn refuses_launcher() {
    for name in ["RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"] {
        let mut command = program("plain");
        command.env(name, "2");
        let (code, stderr) = fails(command);
        assert_eq!(code, Some(2), "{stderr}");
        assert!(stderr.contains(&format!("cannot spawn under a launcher ({name}=2)")), "{stderr}");
        assert!(stderr.contains("start it plainly"), "{stderr}");
    }
}

fn refuses_absurd() {
    passes(program("absurd"));
}

fn reports_bad_args() {
    passes(program("bad args"));
    passes(program("not finite"));
}

fn reports_store() {
    let out = passes(program("no store"));
    assert_eq!(out, "cannot open the rendezvous store of the workers: port 29500 is taken\n");
}

fn runs_deleted() {
    let own = env::current_exe().unwrap();
    let link = own.with_file_name(format!("spawn-deleted-{}", process::id()));
    fs::hard_link(&own, &link).unwrap();
    let mut command = Command::new(&link);
    command.envs(program("deleted").get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.stdin(process::Stdio::null()).stdout(process::Stdio::piped()).stderr(process::Stdio::piped());
    let output = finish(command);
    let left = fs::remove_file(&link);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(left.is_err(), "the program did not delete its file");
}

fn records_for_launcher() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("error.json");
    for (case, code, message) in [("fail", 1, "Error: cannot save: disk full"), ("crash", 101, "panic: a bug")] {
        let mut command = program(case);
        command.env("TORCHELASTIC_ERROR_FILE", &file);
        let (ended, stderr) = fails(command);
        assert_eq!(ended, Some(code), "{stderr}");
        assert!(stderr.contains("disk full") || stderr.contains("a bug"), "the error is printed, too: {stderr}");
        let record: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        assert_eq!(record["message"]["message"], message);
    }
}

pub(crate) fn program(case: &str) -> Command {
    crate::program(&format!("{CASE} {case}"))
}

fn program_after(prelude: &str, case: &str) -> Command {
    crate::program_after(prelude, &format!("{CASE} {case}"))
}
