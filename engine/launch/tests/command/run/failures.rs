//! Workers that fail: the command's exit code, report, restarts and files.

use insta::assert_snapshot;
use lockstep_process::proc::Stat;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::run::site::{Site, longer_and_longer};
use crate::running::Running;

#[test]
fn a_workers_exit_code_is_reported_but_is_never_the_commands() {
    let site = Site::new();
    for code in [1, 2, 3, 77, 255] {
        let text = format!("exitcode  : {code} (pid: ");
        site.run(&["--standalone", "sh", "-c", &format!("exit {code}")]).code(1).says(&[&text, "sh FAILED"]);
    }
    site.run(&["--standalone", "sh", "-c", "kill -KILL $$$$"]).code(1).says(&["exitcode  : -9 (pid: ", "(SIGKILL)"]);
    site.run(&["--standalone", "--no-such-flag", "true"]).code(2);
    site.run(&["--standalone", "--nproc-per-node=many", "true"]).code(1);
    site.assert_no_process();
}

#[test]
fn the_last_lines_of_a_single_worker_are_known_where_both_streams_go_to_one_file() {
    let site = Site::new();
    let log = std::fs::File::create(site.path("log")).unwrap();
    let fail = "echo step 1; echo step 2 >&2; echo step 3; echo no data >&2; exit 3";
    let mut command = site.lockstep(&["--standalone", "sh", "-c", fail]);
    assert_eq!(command.stdout(log.try_clone().unwrap()).stderr(log).status().unwrap().code(), Some(1));
    let text = site.read("log");
    // The agent's own line may overtake what the worker has written last.
    let own: String =
        text.lines().filter(|line| !line.starts_with("lockstep: ")).map(|line| format!("{line}\n")).collect();
    assert!(own.starts_with("step 1\nstep 2\nstep 3\nno data\nverdict: "), "{text}");
    assert!(text.contains("it ended itself with exit code 3 after \"no data\""), "{text}");
    assert!(text.contains("Last lines of rank 0:\n  step 1\n"), "{text}");
}

#[test]
fn the_report_has_torchruns_format() {
    let site = Site::new();
    let fail = "[ $RANK = 1 ] || exec sleep 1000; echo to stdout; echo step 8 >&2; echo step 9 >&2; exit 3";
    let ended = site.run(&["--standalone", "--nproc-per-node=2", "sh", "-c", fail]).code(1);
    assert_snapshot!(ended.failure(), @r#"
    verdict: rank 1 on [host]: it ended itself with exit code 3 after "step 9" (evidence: its exit code and its last line); advice: the program ended itself: look for the message in its source
    ============================================================
    sh FAILED
    ------------------------------------------------------------
    Failures:
      <NO_OTHER_FAILURES>
    ------------------------------------------------------------
    Root Cause (first observed failure):
    [0]:
      time      : [time]
      host      : [host]
      rank      : 1 (local_rank: 1)
      exitcode  : 3 (pid: [pid])
      error_file: <N/A>
      traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
    ------------------------------------------------------------
    Stopped by the agent because of this (no failures of their own):
      rank 0 (local_rank: 0, pid: [pid]): SIGTERM
    ------------------------------------------------------------
    Last lines of rank 1:
      step 8
      step 9
    ============================================================
    "#);
    site.assert_no_process();
}

#[test]
fn of_two_simultaneous_deaths_the_kernels_first_is_the_root_cause_and_both_are_failures() {
    let site = Site::new();
    // Rank 0 dies as soon as rank 1 has, while the agent is suspended.
    let script = "echo $$$$ > new.$RANK; mv new.$RANK pid.$RANK; echo up; while [ ! -e go ]; do sleep 0.01; done; \
        [ $RANK = 1 ] && exit 5; until grep -q ') Z ' /proc/$(cat pid.1)/stat; do :; done; exit 6";
    let running = site.start(&["--standalone", "--nproc-per-node=2", "sh", "-c", script]);
    running.await_out("up", 2);
    running.signal(Signal::STOP);
    site.file("go", "");
    let dead = |rank: u8| {
        let pid = site.read(&format!("pid.{rank}"));
        Stat::of(pid.trim().parse().unwrap()).unwrap().is_dead()
    };
    site.until("both are dead", || dead(0) && dead(1));
    running.signal(Signal::CONT);
    let ended = running.ended().code(1);
    assert_snapshot!(ended.failure_in_short(), @r#"
    verdict: rank 1 on [host]: it ended itself with exit code 5 after "up" (evidence: its exit code and its last line); advice: the program ended itself: look for the message in its source
    Failures:
    [1]:
      rank      : 0 (local_rank: 0)
      exitcode  : 6 (pid: [pid])
    Root Cause (first observed failure):
    [0]:
      rank      : 1 (local_rank: 1)
      exitcode  : 5 (pid: [pid])
    Last lines of rank 1:
      up
    "#);
}

#[test]
fn a_worker_that_another_process_killed_was_not_stopped_by_the_agent() {
    let site = Site::new();
    // Rank 1 receives SIGTERM and dies for another reason.
    let script = "if [ $RANK = 0 ]; then while [ ! -e up ]; do sleep 0.01; done; exit 4; fi; \
        trap 'trap - ABRT; kill -ABRT $$$$' TERM; ulimit -c 0; : > up; while :; do sleep 0.02; done";
    let ended = site.run(&["--standalone", "--nproc-per-node=2", "sh", "-c", script]).code(1);
    assert_snapshot!(ended.failure_in_short(), @r"
    verdict: rank 0 on [host]: unknown: it left no error and no output (evidence: exit code 4); advice: nothing else is known: @record or an error file says more
    Failures:
    [1]:
      rank      : 1 (local_rank: 1)
      exitcode  : -6 (pid: [pid]) (SIGABRT)
      traceback : Signal 6 (SIGABRT) received by PID [pid]
    Root Cause (first observed failure):
    [0]:
      rank      : 0 (local_rank: 0)
      exitcode  : 4 (pid: [pid])
    ");
}

#[test]
fn all_workers_are_restarted_as_often_as_allowed_and_know_the_count() {
    let site = Site::new();
    let script = "echo rank $RANK attempt $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS; \
                  [ $TORCHELASTIC_RESTART_COUNT = 2 ] && exit 0; [ $RANK = 1 ] && exit 9; exec sleep 1000";
    let flags = ["--standalone", "--nproc-per-node=2", "--prefix=never", "--max-restarts=2"];
    let ended = site.run(&[&flags[..], &["sh", "-c", script]].concat()).code(0);
    let said = ended.sorted();
    let of = |rank, attempt| format!("rank {rank} attempt {attempt} of 2");
    for (rank, attempt) in [(1, 0), (1, 1), (0, 2), (1, 2)] {
        assert_eq!(said.iter().filter(|line| **line == of(rank, attempt)).count(), 1, "{said:?}");
    }
    assert_eq!(ended.err.matches("stopping all workers of this node to restart them").count(), 2, "{}", ended.err);
    site.assert_no_process();
    assert_eq!(site.leftovers().len(), 0);
}

#[test]
fn when_no_restart_is_left_the_report_describes_the_last_attempt() {
    let site = Site::new();
    let script = "exit $((10 + TORCHELASTIC_RESTART_COUNT))";
    let ended = site.run(&["--standalone", "--max-restarts=2", "sh", "-c", script]).code(1);
    ended
        .says(&["ended with exit code 10", "ended with exit code 11", "exitcode  : 12 "])
        .never_says(&["exitcode  : 10"]);
}

#[test]
fn an_error_that_python_recorded_is_the_traceback_and_is_propagated() {
    let site = Site::new();
    let recorded = json!({"message": {"message": "ValueError: no such layer",
        "extraInfo": {"py_callstack": "Traceback (most recent call last):\n  File \"x.py\"\nValueError: no such layer\n",
                      "timestamp": "1763635203"}}});
    site.file("recorded.json", &recorded.to_string());
    let mut command =
        site.lockstep(&["--standalone", "sh", "-c", "cp recorded.json \"$TORCHELASTIC_ERROR_FILE\"; exit 1"]);
    command.env("TORCHELASTIC_ERROR_FILE", site.path("handed-up.json"));
    let ended = Running::start(command).ended().code(1);
    assert_snapshot!(ended.failure_in_short(), @r#"
    verdict: rank 0 on [host]: ValueError: no such layer (evidence: its error file); advice: start at that line
    Failures:
      <NO_OTHER_FAILURES>
    Root Cause (first observed failure):
    [0]:
      rank      : 0 (local_rank: 0)
      exitcode  : 1 (pid: [pid])
      error_file: [folder]/tmp/[logs]/attempt_0/0/error.json
      traceback : Traceback (most recent call last):
        File "x.py"
      ValueError: no such layer
    Logs: [folder]/tmp/[logs]
    "#);
    let handed: Value = serde_json::from_str(&site.read("handed-up.json")).unwrap();
    assert_eq!(handed["message"]["message"], "ValueError: no such layer");
    assert_eq!(handed["message"]["errorCode"], 1);
    let mut command = site.lockstep(&["--standalone", "false"]);
    command.env("TORCHELASTIC_ERROR_FILE", site.path("no/such/folder/error.json"));
    Running::start(command).ended().code(1).says(&["cannot write the root cause to ", "no/such/folder/error.json"]);
}

#[test]
fn an_error_file_with_any_contents_is_reported() {
    let site = Site::new();
    let cases = [
        ("printf 'not json' > \"$TORCHELASTIC_ERROR_FILE\"", "not json"),
        ("printf '' > \"$TORCHELASTIC_ERROR_FILE\"", "exitcode  : 1 "),
        (r#"printf '{"message": "plain text", "timestamp": 1}' > "$TORCHELASTIC_ERROR_FILE""#, "plain text"),
        ("head -c 50000000 /dev/zero | tr '\\0' x > \"$TORCHELASTIC_ERROR_FILE\"", "xxxx"),
        ("head -c 1000 /dev/urandom > \"$TORCHELASTIC_ERROR_FILE\"", "exitcode  : 1 "),
        ("mkdir \"$TORCHELASTIC_ERROR_FILE\"", "it is not a regular file"),
        ("mkfifo \"$TORCHELASTIC_ERROR_FILE\"", "it is not a regular file"),
    ];
    for (write, text) in cases {
        let ended = site.run(&["--standalone", "sh", "-c", &format!("{write}; exit 1")]).code(1).says(&[text]);
        assert!(ended.err.len() < 20_000, "{write}: {} bytes", ended.err.len());
    }
}

#[test]
fn a_command_that_cannot_start_writes_its_own_error_file() {
    let site = Site::new();
    let mut command = site.lockstep(&["--standalone", "no-such-program-anywhere"]);
    command.env("TORCHELASTIC_ERROR_FILE", site.path("mine.json"));
    Running::start(command).ended().code(1).says(&["no-such-program-anywhere"]);
    assert!(site.read("mine.json").contains("no-such-program-anywhere"));
}

#[test]
fn names_with_newlines_and_escapes_stay_in_their_line() {
    let site = Site::new();
    let ended = site.run(&["--standalone", "no\nsuch\x1b[2Jprogram"]).code(1);
    ended.says(&["error: cannot find no\\nsuch\\u{1b}[2Jprogram: "]);
    site.run(&["--standalone", "--nproc-per-node=a\nb", "true"]).code(1).says(&["--nproc-per-node=a\\nb: "]);
    let program = site.program("fail\nnow", "#!/bin/sh\necho \"no\x1b[2J data\" >&2; exit 3\n");
    let ended = site.run(&["--standalone", "--rdzv-id=x", &program]).code(1);
    ended.says(&["after \"no\\u{1b}[2J data\"", "fail\\nnow FAILED\n"]);
    let planned = site.run(&["--standalone", "--dry-run", &program, "a\nb"]).code(0);
    assert!(planned.out.lines().any(|line| line.starts_with("command ") && line.contains("a\\nb")), "{}", planned.out);
}

#[test]
fn a_worker_that_fails_while_others_are_stopped_is_distinguished_from_them() {
    let site = Site::new();
    // Rank 2 handles the signal with its own exit code; rank 1 ignores it and is killed.
    let script = r#"case $RANK in
        0) while [ ! -e up.1 ] || [ ! -e up.2 ]; do sleep 0.01; done; exit 4;;
        1) trap '' TERM; : > up.1; while :; do sleep 1; done;;
        2) trap 'exit 6' TERM; : > up.2; while :; do sleep 0.05; done;;
    esac"#;
    let run = |stop_timeout: &str| {
        for up in ["up.1", "up.2"] {
            let _ = std::fs::remove_file(site.path(up)); // of a former run
        }
        site.run(&["--standalone", "--nproc-per-node=3", stop_timeout, "sh", "-c", script]).code(1)
    };
    // On a busy machine rank 2 may not have handled the signal by then, and is killed, too.
    let ended = longer_and_longer(run, |ended| ended.err.contains("exit code 6"));
    assert_snapshot!(ended.failure_in_short(), @r"
    verdict: rank 0 on [host]: unknown: it left no error and no output (evidence: exit code 4); advice: nothing else is known: @record or an error file says more
    Failures:
      <NO_OTHER_FAILURES>
    Root Cause (first observed failure):
    [0]:
      rank      : 0 (local_rank: 0)
      exitcode  : 4 (pid: [pid])
    Stopped by the agent because of this (no failures of their own):
      rank 2 (local_rank: 2, pid: [pid]): exit code 6
      rank 1 (local_rank: 1, pid: [pid]): SIGKILL
    ");
    site.assert_no_process();
}
