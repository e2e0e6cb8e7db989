//! The workers' output: on the console, in files, complete, and for all kinds of consoles. And `lockstep stacks`.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::run::site::Site;
use crate::running::{Ended, ended, lockstep};

/// Prints many lines in pieces that end anywhere, so that a launcher that forwards pieces would mix them.
const PIECES: &str = r#"
import os
rank = os.environ["RANK"]
text = b"".join(b"%s:%d:%s\n" % (rank.encode(), number, rank.encode() * (number % 97)) for number in range(2000))
at, size = 0, 1
while at < len(text):
    os.write(1, text[at:at + size])
    at, size = at + size, size * 7 % 251 + 1
"#;

#[test]
fn lines_of_eight_ranks_are_complete_and_in_order() {
    let site = Site::new();
    let script = site.file("pieces.py", PIECES);
    let ended = site.run(&["--standalone", "--nproc-per-node=8", &script]).code(0);
    let mut next: BTreeMap<u32, usize> = BTreeMap::new();
    for line in ended.out.lines() {
        let (prefix, text) = line.split_once("]:").unwrap_or_else(|| panic!("`{line}`"));
        let rank: u32 = prefix.strip_prefix("[default").unwrap().parse().unwrap();
        let number = next.entry(rank).or_default();
        assert_eq!(text, format!("{rank}:{number}:{}", rank.to_string().repeat(*number % 97)));
        *number += 1;
    }
    assert_eq!(next, (0..8).map(|rank| (rank, 2000)).collect());
}

#[test]
fn the_output_of_a_single_worker_is_unchanged_byte_for_byte() {
    let site = Site::new();
    let print = r"printf 'h\303\251llo\377\376\000 \033[31mred\033[0m\r50%%\rend without newline'";
    let ended = site.run(&["--standalone", "sh", "-c", print]).code(0);
    assert_eq!(ended.raw, b"h\xc3\xa9llo\xff\xfe\0 \x1b[31mred\x1b[0m\r50%\rend without newline");
}

#[test]
fn all_bytes_of_several_workers_are_shown() {
    let site = Site::new();
    let print = r"printf 'a\377\376\303z\nlast'";
    let ended = site.run(&["--standalone", "--nproc-per-node=2", "sh", "-c", print]).code(0);
    let mut lines: Vec<&[u8]> = ended.raw.split_inclusive(|byte| *byte == b'\n').collect();
    lines.sort_unstable();
    let expected: [&[u8]; 4] =
        [b"[default0]:a\xff\xfe\xc3z\n", b"[default0]:last\n", b"[default1]:a\xff\xfe\xc3z\n", b"[default1]:last\n"];
    assert_eq!(lines, expected);
}

#[test]
fn a_line_without_end_neither_stops_the_job_nor_fills_the_memory() {
    let site = Site::new();
    let script = "head -c 30000000 /dev/zero | tr '\\0' x; echo; grep VmHWM /proc/$PPID/status >&2";
    let ended = site.run(&["--standalone", "--nproc-per-node=2", "sh", "-c", script]).code(0);
    assert_eq!(ended.out.matches('x').count(), 60_000_000);
    let highest: Vec<u64> = ended
        .err
        .lines()
        .filter_map(|line| line.split_once("VmHWM:")?.1.split_whitespace().next()?.parse().ok())
        .collect();
    assert_eq!(highest.len(), 2, "{}", ended.err);
    assert!(highest.iter().all(|kib| *kib < 30_000), "the agent grew to {highest:?} KiB");
}

#[test]
fn closing_the_console_does_not_end_the_job() {
    let site = Site::new();
    let script = "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done; echo $RANK >> done";
    let mut command = site.lockstep(&["--standalone", "--nproc-per-node=2", "sh", "-c", script]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut first = String::new();
    // Like `| head -1`.
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert!(first.contains("line 0"), "{first}");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let mut ranks: Vec<String> = site.read("done").lines().map(str::to_owned).collect();
    ranks.sort();
    assert_eq!(ranks, ["0", "1"]);
    site.assert_no_process();
}

/// The files below a folder, by relative path.
fn tree(folder: &Path) -> BTreeMap<String, String> {
    let mut tree = BTreeMap::new();
    let mut open = vec![folder.to_owned()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else {
                let name = path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
                tree.insert(name, fs::read_to_string(&path).unwrap());
            }
        }
    }
    tree
}

/// The only folder in it.
fn only(folder: &Path) -> std::path::PathBuf {
    let mut entries: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(entries.len(), 1, "{entries:?}");
    entries.remove(0)
}

const BOTH: &str = "echo out $RANK $TORCHELASTIC_RESTART_COUNT; echo err $RANK $TORCHELASTIC_RESTART_COUNT >&2; ";

#[test]
fn logs_have_torchruns_layout_and_every_attempt_keeps_its_own() {
    let site = Site::new();
    let script = format!(
        "{BOTH} [ $RANK = 0 ] && [ $TORCHELASTIC_RESTART_COUNT = 0 ] && exit 1; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || exec sleep 1000"
    );
    let flags =
        ["--rdzv-id=job7", "--max-restarts=1", "--nproc-per-node=2", "--log-dir", &site.word("logs"), "-r", "3"];
    let [port, address] = site.master();
    let ended = site.run(&[&flags[..], &[&port, &address, "sh", "-c", &script]].concat()).code(0);
    assert_eq!(ended.out, "");
    let folder = only(&site.path("logs"));
    assert!(folder.file_name().unwrap().to_str().unwrap().starts_with("job7_"), "{folder:?}");
    let files = tree(&folder);
    for (attempt, rank) in [(0, 0), (1, 0), (1, 1)] {
        assert_eq!(files[&format!("attempt_{attempt}/{rank}/stdout.log")], format!("out {rank} {attempt}\n"));
        assert_eq!(files[&format!("attempt_{attempt}/{rank}/stderr.log")], format!("err {rank} {attempt}\n"));
    }
    assert_eq!(site.leftovers().len(), 0);
}

#[test]
fn redirects_and_tees_can_differ_by_rank_and_stream() {
    let site = Site::new();
    let flags = ["--standalone", "--nproc-per-node=3", "--log-dir", &site.word("logs"), "-r", "0:1,2:3", "-t", "1:3"];
    let ended = site.run(&[&flags[..], &["sh", "-c", BOTH]].concat()).code(0);
    assert_eq!(ended.sorted(), ["[default1]:out 1 0"]);
    ended.says(&["[default0]:err 0 0\n", "[default1]:err 1 0\n"]).never_says(&["err 2 0"]);
    let files = tree(&only(&site.path("logs")));
    assert_eq!(files["attempt_0/0/stdout.log"], "out 0 0\n");
    assert_eq!(files["attempt_0/1/stdout.log"], "out 1 0\n");
    assert_eq!(files["attempt_0/1/stderr.log"], "err 1 0\n");
    assert_eq!(files["attempt_0/2/stderr.log"], "err 2 0\n");
}

#[test]
fn the_filter_of_ranks_applies_only_to_the_console() {
    let site = Site::new();
    let flags =
        ["--standalone", "--nproc-per-node=3", "--log-dir", &site.word("logs"), "-t", "3", "--local-ranks-filter=2"];
    let ended = site.run(&[&flags[..], &["sh", "-c", BOTH]].concat()).code(0).never_says(&["err 0", "err 1"]);
    assert_eq!(ended.out, "[default2]:out 2 0\n");
    let files = tree(&only(&site.path("logs")));
    assert_eq!(
        [0, 1, 2].map(|rank| &*files[&format!("attempt_0/{rank}/stdout.log")]),
        ["out 0 0\n", "out 1 0\n", "out 2 0\n"]
    );
}

#[test]
fn lines_that_match_a_filter_are_collected_in_a_separate_file() {
    let site = Site::new();
    let flags = [
        "--standalone",
        "--nproc-per-node=2",
        "--log-dir",
        &site.word("logs"),
        "-t",
        "3",
        "--duplicate-stdout-filters=loss",
    ];
    site.run(&[&flags[..], &["sh", "-c", "echo loss $RANK; echo other"]].concat()).code(0);
    let files = tree(&only(&site.path("logs")));
    let mut lines: Vec<&str> = files["attempt_0/filtered_stdout.log"].lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[default0]:loss 0", "[default1]:loss 1"]);
}

#[test]
fn temporary_logs_are_removed_after_success_and_kept_after_failure_or_on_request() {
    let site = Site::new();
    site.run(&["--standalone", "-t", "3", "sh", "-c", "echo hi"]).code(0);
    assert_eq!(site.leftovers().len(), 0);
    let ended = site.run(&["--standalone", "-t", "3", "sh", "-c", "echo hi; exit 1"]).code(1);
    let kept = only(&only(&site.path("tmp")));
    assert_eq!(tree(&kept)["attempt_0/0/stdout.log"], "hi\n");
    ended.says(&[&format!("Logs: {}", kept.display())]);
    fs::remove_dir_all(kept.parent().unwrap()).unwrap();
    site.run(&["--standalone", "-t", "3", "--keep-logs", "sh", "-c", "echo hi"]).code(0);
    assert_eq!(tree(&only(&only(&site.path("tmp"))))["attempt_0/0/stdout.log"], "hi\n");
}

#[test]
fn logs_go_elsewhere_with_a_note_where_tmpdir_cannot_be_used() {
    let site = Site::new();
    for tmpdir in [site.file("file", ""), site.word("missing")] {
        let mut command =
            site.lockstep(&["--standalone", "--nproc-per-node=2", "sh", "-c", "test -d ${TORCHELASTIC_ERROR_FILE%/*}"]);
        command.env("TMPDIR", &tmpdir);
        let ended = crate::running::Running::start(command).ended().code(0);
        assert_eq!(
            ended.err.matches(&format!("note: no temporary files can be made in {tmpdir} (TMPDIR): ")).count(),
            1
        );
    }
}

/// A cleaner of /tmp does not know that the job still runs.
#[test]
fn a_log_folder_that_was_removed_meanwhile_is_made_again() {
    for flags in [&["-t", "3", "--log-dir=logs"][..], &[]] {
        let site = Site::new();
        let script = "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exec echo fine; [ $RANK = 0 ] && { rm -rf tmp/* logs; exit 3; }; exec sleep 600";
        let words =
            [&["--standalone", "--nproc-per-node=2", "--max-restarts=1"], flags, &["sh", "-c", script]].concat();
        let ended = site.run(&words).code(0).says(&["was removed while the job ran: made it again"]);
        assert_eq!(ended.sorted(), ["[default0]:fine", "[default1]:fine"]);
        assert_eq!(site.leftovers().len(), 0);
    }
}

/// By `ulimit -f`: the log, what the console's file shows, and the event file.
#[test]
fn a_file_that_reaches_its_limit_does_not_end_the_job_and_is_named() {
    let print = "head -c 5000 /dev/zero | tr '\\0' x; echo";
    let shell = |site: &Site, command: &str| {
        let mut shell = Command::new("sh");
        site.prepare(&mut shell);
        shell.args(["-c", &format!("ulimit -f 1; {command}"), "sh", print]);
        crate::running::Running::start(shell).ended()
    };
    let run = format!("{} run --standalone --nproc-per-node=2 --log-dir=logs", lockstep());
    let site = Site::new();
    let full = "is not complete: File too large (os error 27): `ulimit -f` limits the size of a file";
    shell(&site, &format!("{run} -t 3 sh -c \"$1\"")).code(0).says(&["stdout.log", full]);
    shell(&site, &format!("{run} sh -c \"$1\" >console")).code(0).says(&["standard output", full]);
    let failing = format!("LOCKSTEP_EVENTS=events {run} --max-restarts=30 sh -c 'exit 3'");
    shell(&site, &failing).code(1).says(&["cannot write events to events/", "FAILED"]);
}

#[test]
fn logs_can_be_disabled() {
    let site = Site::new();
    let ended =
        site.run(&["--standalone", "--log-dir=/dev/null", "sh", "-c", "echo hi $TORCHELASTIC_ERROR_FILE"]).code(0);
    assert!(ended.out.starts_with("hi"), "{}", ended.out);
    assert_eq!(site.leftovers().len(), 0);
}

#[test]
fn the_prefix_follows_its_template() {
    let site = Site::new();
    let mut command =
        site.lockstep(&["--standalone", "--nproc-per-node=2", "--role=trainer", "-t", "1", "sh", "-c", "echo x"]);
    command.env("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "<${role_name}/${rank}/${local_rank}> ");
    let ended = crate::running::Running::start(command).ended().code(0);
    assert_eq!(ended.sorted(), ["<trainer/0/0> x", "<trainer/1/1> x"]);
}

#[test]
fn a_worker_that_floods_a_blocked_console_can_be_stopped() {
    let site = Site::new();
    let mut command = site.lockstep(&["--standalone", "--stop-timeout=1", "sh", "-c", "echo up >&2; exec yes"]);
    let (reader, writer) = std::io::pipe().unwrap();
    let mut child = command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    drop(command);
    let mut first = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut first).unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    drop(reader);
    site.assert_no_process();
}

#[test]
fn a_log_folder_that_cannot_be_created_is_reported_before_the_start() {
    let site = Site::new();
    let file = site.file("file", "");
    for folder in [file.clone(), format!("{file}/below")] {
        let ended = site.run(&["--standalone", "--log-dir", &folder, "sh", "-c", "echo started"]).code(1);
        assert_eq!(ended.out, "");
        ended.says(&[&folder]);
    }
    site.assert_no_process();
}

fn stacks(site: &Site, words: &[&str]) -> Ended {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("lockstep"));
    command.arg("stacks").args(words);
    site.prepare(&mut command);
    ended(&mut command)
}

#[test]
fn prints_every_rank_of_a_job_and_leaves_it_running() {
    let site = Site::new();
    let script = site.file(
        "waits.py",
        "import time\ndef waits_for_ever():\n    print('up', flush=True)\n    time.sleep(1000)\nwaits_for_ever()\n",
    );
    let running = site.start(&["--standalone", "--nproc-per-node=2", &script]);
    running.await_out("up", 2);
    let shown = stacks(&site, &[&running.pid().to_string()]).code(0);
    for rank in [0, 1] {
        assert!(shown.out.contains(&format!("rank {rank} (pid ")), "{shown}");
    }
    if shown.out.contains("is installed") || shown.out.contains(" failed: ") {
        println!("not verified here: the stacks themselves ({})", shown.out.lines().nth(1).unwrap_or_default().trim());
    } else {
        assert!(
            ["by py-spy:", "by gdb:", "by eu-stack:"].iter().any(|tool| shown.out.matches(tool).count() == 2),
            "{shown}"
        );
    }
    running.signal(Signal::TERM);
    running.ended().code(1).says(&["received SIGTERM"]);
    site.assert_no_process();
}

#[test]
fn refuses_a_process_that_is_no_launcher() {
    let site = Site::new();
    stacks(&site, &["1"]).code(2).says(&["process 1 is not a `lockstep run` with running ranks"]);
}
