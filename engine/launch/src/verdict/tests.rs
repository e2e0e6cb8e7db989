//! Every rule by its example, and who is at fault if several workers ended.

use std::path::PathBuf;
use std::time::Duration;

use lockstep_contract::rules::{Rule, prove};
use lockstep_process::NoProgress;

use super::rules::{Example, all};
use super::*;
use crate::report::testing::{at, death, with_file};
use crate::report::{Death, Failure, first_failure};

/// A worker that ended after these milliseconds, with these last lines.
fn ended(rank: usize, exitcode: i32, millis: u64, text: &str) -> Failure {
    let tail = text.lines().map(str::to_owned).collect();
    Failure::of(Death { tail, ..death(rank, exitcode, millis) }, "node0")
}

fn stopped(rank: usize, text: &str) -> Failure {
    let failure = ended(rank, -15, 4_000, text);
    Failure { death: Death { stopped: true, ..failure.death }, ..failure }
}

fn evidence() -> Evidence {
    Evidence { host: "node0".into(), ranks: vec![0, 1, 2], ..Evidence::default() }
}

fn verdict(failures: &[Failure], evidence: &Evidence) -> Verdict {
    judge(failures, first_failure(failures).unwrap(), evidence).unwrap()
}

fn alone(exitcode: i32, text: &str) -> Verdict {
    verdict(&[ended(1, exitcode, 3_000, text)], &evidence())
}

const PEER: &str = "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:40112";
const TRACEBACK: &str =
    "Traceback (most recent call last):\n  File \"train.py\", line 9, in step\n    f()\nValueError: no such layer";

/// The verdict on an example of a rule.
fn on(example: &Example) -> Verdict {
    let (mut failure, mut evidence) = (ended(1, example.exitcode, 3_000, example.output), evidence());
    (example.facts)(&mut failure, &mut evidence);
    verdict(&[failure], &evidence)
}

#[test]
fn every_rule_finds_its_wrong_example_and_spares_the_right_one() {
    prove(all(), |_, example| vec![on(example).rule]);
    assert!(all().all(|rule| !rule.fix.is_empty() && !rule.source.is_empty()));
}

#[test]
fn an_exception_is_the_cause_if_the_interpreter_aborts_on_its_way_out() {
    let found = alone(-6, &format!("{TRACEBACK}\nterminate called without an active exception"));
    assert_eq!(found.rule, "exception", "{found}");
    let found = alone(-6, &format!("{TRACEBACK}\nepoch 4\nterminate called without an active exception"));
    assert_eq!(found.rule, "aborted", "{found}");
}

#[test]
fn an_example_is_found_also_as_the_end_of_a_traceback() {
    let plain = |rule: &&'static Rule<Causes>| {
        rule.wrong.exitcode == 1
            && !rule.wrong.output.contains('\n')
            && rule.wrong.output.contains("Error")
            && !rule.wrong.output.starts_with('/')
    };
    // Others also need facts that are not in the output.
    let by_words = |rule: &&'static Rule<Causes>| alone(1, rule.wrong.output).rule == rule.name;
    for rule in all().filter(plain).filter(by_words) {
        let text = format!(
            "epoch 3\nTraceback (most recent call last):\n  File \"/x/t.py\", line 9, in step\n    f()\n{}\n",
            rule.wrong.output
        );
        let found = alone(1, &text);
        assert_eq!(found.rule, rule.name, "{found}");
        assert!(found.how_known.contains("/x/t.py:9 in step") || found.cause.contains("/x/t.py:9 in step"), "{found}");
    }
}

#[test]
fn an_exception_is_reported_with_its_cause_and_the_users_own_lines() {
    let text = "Traceback (most recent call last):\n  File \"/x/data.py\", line 7, in load\n    f()\nKeyError: 'a'\n\n\
        The above exception was the direct cause of the following exception:\n\n\
        Traceback (most recent call last):\n  File \"/x/train.py\", line 30, in <module>\n    main()\n\
        \x20 File \"/e/lib/python3.11/site-packages/t.py\", line 5, in call\nRuntimeError: cannot load\n";
    let found = alone(1, text);
    assert_eq!(
        found.to_string(),
        "verdict: rank 1 on node0: RuntimeError: cannot load (/x/train.py:30), caused by KeyError: 'a' (/x/data.py:7 in load) \
         (evidence: its traceback); advice: start at that line"
    );
}

#[test]
fn an_exception_is_read_also_where_pytorch_puts_the_rank_before_each_line() {
    let text = TRACEBACK.lines().map(|line| format!("[rank1]: {line}\n")).collect::<String>();
    let text = format!("{text}[rank1]:[W1122 10:00:00 ProcessGroup.cpp:1] destroyed\n");
    assert_eq!(alone(1, &text).cause, "ValueError: no such layer (train.py:9 in step)");
}

#[test]
fn an_error_file_counts_before_the_output() {
    let dir = tempfile::tempdir().unwrap();
    let python = r#"{"message": {"message": "ValueError: no", "extraInfo": {"py_callstack": "Traceback (most recent call last):\n  File \"x.py\", line 2, in f\nValueError: no\n", "timestamp": "1763635203"}}}"#;
    let found = verdict(&[with_file(&dir, death(1, 1, 3_500), python)], &evidence());
    assert_eq!((found.cause.as_str(), found.how_known.as_str()), ("ValueError: no (x.py:2 in f)", "its error file"));
    let rust = r#"{"message": {"message": "m", "extraInfo": {"lockstep": {"panic": true, "text": "index out of bounds", "location": "src/main.rs:3:5", "trace": null, "unix_nanos": 1}}}}"#;
    let found = verdict(&[with_file(&dir, death(1, 101, 3_500), rust)], &evidence());
    assert_eq!((found.rule, found.cause.as_str()), ("panic", "it panicked: index out of bounds (src/main.rs:3:5)"));
}

#[test]
fn the_limit_of_timeout_is_told_from_the_programs_own_end() {
    let after = |seconds: u64, exitcode, line: &str| {
        let started = at(10_000) - Duration::from_secs(seconds);
        let death = Death { started, ..death(1, exitcode, 10_000) };
        let command = line.split(' ').map(str::to_owned).collect();
        verdict(&[Failure::of(death, "node0")], &Evidence { command, ..evidence() })
    };
    let found = after(8, 124, "timeout 7s python train.py");
    assert_eq!(
        (found.cause.as_str(), found.how_known.as_str()),
        ("timeout(1) ended it at its limit of 7s", "exit code 124, 8.0 s after the start of `timeout 7s`")
    );
    assert_eq!(after(8, -9, "timeout -k 1 7 python").rule, "timeout");
    assert_eq!(after(8, 137, "nice timeout -s KILL 7 python").rule, "timeout");
    for (seconds, exitcode, line) in [
        (6, 124, "timeout 7 python"),
        (8, -9, "timeout 7 python"),
        (8, 124, "python timeout 7"),
        (8, 1, "timeout 7 python"),
    ] {
        assert_ne!(after(seconds, exitcode, line).rule, "timeout", "{line}");
    }
}

#[test]
fn a_kill_is_told_from_the_oom_daemons() {
    let counted = |after| {
        let memory = Some(MemoryKills { file: "/sys/fs/cgroup/memory.events".into(), before: 2, after });
        verdict(&[ended(1, -9, 3_000, "step 3")], &Evidence { memory, ..evidence() })
    };
    let killer = counted(3);
    assert_eq!(killer.rule, "oom-killer");
    assert_eq!(killer.how_known, "SIGKILL, and /sys/fs/cgroup/memory.events rose from 2 to 3 (oom_kill)");
    let other = counted(2);
    assert_eq!(other.rule, "killed");
    assert!(other.cause.starts_with("somebody else killed it") && other.how_known.contains("stayed 2"), "{other}");
    let line = "Memory cgroup out of memory: Killed process 101 (python3) total-vm:9kB";
    let logged = |line: &str| {
        let kernel_log = vec![line.to_owned()];
        verdict(&[ended(1, -9, 3_000, "")], &Evidence { kernel_log, ..evidence() }).rule
    };
    assert_eq!((logged(line), logged(&line.replace("101", "1011"))), ("oom-killer", "killed"));
    // What a worker printed before somebody else killed it does not explain its end.
    assert_eq!(alone(-9, TRACEBACK).rule, "killed");
    // The OOM killer does not explain another end.
    let memory = Some(MemoryKills { file: "m".into(), before: 0, after: 1 });
    assert_eq!(verdict(&[ended(1, 1, 3_000, TRACEBACK)], &Evidence { memory, ..evidence() }).rule, "exception");
}

#[test]
fn a_signal_is_known_also_behind_a_shell() {
    assert_eq!(alone(137, "").rule, "killed");
    assert_eq!(alone(139, "Segmentation fault").rule, "segmentation-fault");
    assert!(alone(139, "").how_known.contains("as a shell says"), "{}", alone(139, ""));
}

#[test]
fn a_stack_overflow_is_told_from_another_segmentation_fault_by_the_kernels_log() {
    let rule = |line: &str| {
        let kernel_log = vec![line.to_owned()];
        verdict(&[ended(1, -11, 3_000, "")], &Evidence { kernel_log, ..evidence() }).rule
    };
    assert_eq!(
        rule("python[101]: segfault at 7ffc0e1fcff8 ip 000055d0 sp 00007ffc0e1fd000 error 6 in x"),
        "stack-overflow"
    );
    assert_eq!(rule("python[101]: segfault at 0 ip 000055d0 sp 00007ffc0e1fd000 error 4 in x"), "segmentation-fault");
    assert_eq!(
        rule("python[102]: segfault at 7ffc0e1fcff8 ip 000055d0 sp 00007ffc0e1fd000 error 6 in x"),
        "segmentation-fault"
    );
}

#[test]
fn a_bus_error_with_full_shared_memory_is_told_from_another() {
    let rule = |free| {
        let shm = FileSystem { path: "/dev/shm".into(), free, size: 64 << 20, free_files: Some(9), read_only: false };
        verdict(&[ended(1, -7, 3_000, "")], &Evidence { file_systems: vec![shm], ..evidence() }).rule
    };
    assert_eq!((rule(0), rule(4096)), ("shared-memory-full", "bus-error"));
}

#[test]
fn the_time_limit_is_known_by_the_jobs_end() {
    let rule = |seconds| {
        let job_end = Some(at(0) + Duration::from_secs(seconds));
        verdict(&[ended(1, -15, 3_000, "")], &Evidence { job_end, ..evidence() }).rule
    };
    assert_eq!((rule(2), rule(60)), ("time-limit", "asked-to-end"));
}

#[test]
fn a_full_disk_is_named_with_its_folder_and_state() {
    let path = PathBuf::from("/scratch/7.pt");
    let disk = FileSystem { path, free: 0, size: 10 << 30, free_files: None, read_only: false };
    let text = "OSError: [Errno 28] No space left on device: '/scratch/7.pt'";
    let found = verdict(&[ended(1, 1, 3_000, text)], &Evidence { file_systems: vec![disk], ..evidence() });
    assert_eq!(found.cause, "a disk is full: /scratch/7.pt");
    assert!(found.how_known.ends_with("; /scratch/7.pt has 0 of 10240 MiB free"), "{found}");
}

#[test]
fn a_rank_that_lost_its_peer_is_not_at_fault_if_another_failed_by_itself() {
    let first = || ended(0, 1, 3_000, PEER);
    for culprit in [ended(1, 1, 3_050, TRACEBACK), stopped(1, TRACEBACK), ended(1, -9, 3_050, "")] {
        let found = verdict(&[first(), culprit], &evidence());
        assert_eq!(found.rank, 1, "{found}");
        assert!(found.how_known.contains("rank 0 ended first, but as a consequence"), "{found}");
    }
    // A worker that was only stopped is not at fault, nor is one whose traceback was long ago.
    for innocent in [stopped(1, ""), stopped(1, &format!("{TRACEBACK}{}", "\nstep 5".repeat(12)))] {
        let found = verdict(&[first(), innocent], &evidence());
        assert_eq!((found.rank, found.rule), (0, "peer-gone"), "{found}");
        assert!(
            found.to_string().starts_with("verdict: unknown which rank is at fault; rank 0 on node0 noticed it: "),
            "{found}"
        );
    }
}

/// What PyTorch 2.11 printed on two nodes whose host names led to 127.0.1.1, and this project's ranks there.
const ON_LOOPBACK: [&str; 2] = [
    "RuntimeError: Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:152] timed out connecting: \
     SO_ERROR: Connection refused, remote=[127.0.1.1]:36232$1",
    "error: connect process group 0 of 2 ranks on rank 0 timed out after 0.30 s: Gloo connectFullMesh failed with \
     [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:152] timed out connecting: SO_ERROR: Connection refused, \
     remote=[127.0.1.1]:3482$0",
];

#[test]
fn a_loopback_address_from_another_node_is_a_cause_and_not_a_rank_that_has_gone() {
    let on = |nodes, text: &str| verdict(&[ended(1, 1, 3_000, text)], &Evidence { nodes, ..evidence() });
    for text in ON_LOOPBACK {
        let found = on(2, text);
        assert_eq!((found.rule, found.class), ("gloo-address", Class::Cause), "{found}");
        assert!(found.cause.contains("gave out its address as 127.0.1.1"), "{found}");
        assert_eq!(on(1, text).rule, "peer-gone", "on one node a rank had gone");
        assert_eq!(on(2, &text.replace("127.0.1.1", "10.0.0.2")).rule, "peer-gone");
        let unreachable = text.replace("127.0.1.1", "10.0.0.2").replace("Connection refused", "Network is unreachable");
        assert_eq!(on(2, &unreachable).rule, "gloo-address");
    }
    let at_once = "RuntimeError: [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/socket.cc:142] rv != -1. -1 vs -1. connect: \
                   Network is unreachable";
    assert_eq!(on(2, at_once).rule, "gloo-address");
}

#[test]
fn a_rank_that_returned_early_is_at_fault_for_those_that_waited() {
    let waited = "RuntimeError: [x/unbound_buffer.cc:78] Timed out waiting 1000ms for recv operation to complete";
    for text in [PEER, waited] {
        let found = verdict(&[ended(0, 1, 3_000, text)], &Evidence { returned: vec![2], ..evidence() });
        assert_eq!((found.rank, found.rule), (2, "rank-returned-early"), "{found}");
    }
    let own = verdict(&[ended(0, 1, 3_000, TRACEBACK)], &Evidence { returned: vec![2], ..evidence() });
    assert_eq!((own.rank, own.rule), (0, "exception"));
}

#[test]
fn a_rank_that_stands_still_is_at_fault_for_those_that_waited() {
    let at = |state| NoProgress { state, wait_channel: None, file: None, tracer: None };
    let waited = "RuntimeError: [x/unbound_buffer.cc:78] Timed out waiting 1000ms for recv operation to complete";
    for (state, rule) in [('T', "rank-stopped"), ('D', "rank-cannot-be-killed")] {
        let standing = vec![Standing { rank: 2, pid: 7, at: at(state) }];
        let found = verdict(&[ended(0, 1, 3_000, waited)], &Evidence { standing, ..evidence() });
        assert_eq!((found.rank, found.rule), (2, rule), "{found}");
    }
}

#[test]
fn the_rank_that_the_evidence_names_is_at_fault() {
    let barrier = "RuntimeError: [Rank 0]: Rank 2 failed to pass monitoredBarrier in 2000 ms";
    let found = verdict(&[ended(0, 1, 3_000, barrier)], &evidence());
    assert_eq!((found.rank, found.host.as_deref()), (2, Some("node0")));
    assert_eq!(found.cause, "rank 2 did not come to a barrier for 2000 ms");
    // It may end after a rank that only lost it.
    let found = verdict(&[ended(1, 1, 3_000, PEER), ended(0, 1, 3_050, barrier)], &evidence());
    assert_eq!((found.rank, found.cause.as_str()), (2, "rank 2 did not come to a barrier for 2000 ms"));
    let elsewhere = verdict(&[ended(0, 1, 3_000, &barrier.replace("Rank 2", "Rank 7"))], &evidence());
    assert_eq!((elsewhere.rank, elsewhere.host), (7, None));
    let own = verdict(&[ended(0, 1, 3_000, barrier), stopped(2, TRACEBACK)], &evidence());
    assert_eq!((own.rank, own.rule), (2, "exception"), "{own}");
    let differ = all().find(|rule| rule.name == "calls-differ").unwrap().wrong.output;
    let found = verdict(&[ended(0, 1, 3_000, differ)], &evidence());
    assert_eq!((found.rank, found.cause.as_str()), (1, "the ranks' calls differ: rank 1 is in BROADCAST"));
}

#[test]
fn knows_what_pytorch_2_15_prints() {
    for (exitcode, text, rule, cause) in [
        (
            1,
            "RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:545] Read error [127.0.0.1]:6043: Connection reset by peer. This is typically caused by a remote worker hanging or bugs in the application. Check the logs of the remote worker before reporting an error. GLHF! \u{1f3d6}\u{fe0f}",
            "peer-gone",
            "it lost a connection: the other end, usually another rank, had ended first",
        ),
        (
            1,
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 34675, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
            "port-in-use",
            "it tried to listen on a port that is taken",
        ),
        (
            1,
            "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: CollectiveFingerPrint(SequenceNumber=1, OpType=ALLREDUCE, TensorShape=[4], TensorDtypes=Float, TensorDeviceTypes=TensorOptions(dtype=float (default), device=cpu, layout=Strided (default), requires_grad=false (default), pinned_memory=false (default), memory_format=(nullopt))), but Rank 1 is running collective: CollectiveFingerPrint(SequenceNumber=1, OpType=BROADCAST, TensorShape=[4], TensorDtypes=Float, TensorDeviceTypes=TensorOptions(dtype=float (default), device=cpu, layout=Strided (default), requires_grad=false (default), pinned_memory=false (default), memory_format=(nullopt))).Collectives differ in the following aspects: \tOp type: ALLREDUCEvs BROADCAST",
            "calls-differ",
            "the ranks' calls differ: rank 1 is in BROADCAST, TensorShape=[4]",
        ),
        (1, "RuntimeError: nccl2 requires at least one CUDA device", "gpu-invisible", "the worker sees no GPU"),
        (
            1,
            "torch.distributed.DistStoreError: wait timeout after 2000ms, keys: /default_pg/0//cpu//0/1",
            "collective-timed-out",
            "a rank did not take part in a collective in time (2000 ms)",
        ),
    ] {
        let found = alone(exitcode, text);
        assert_eq!((found.rule, found.cause.as_str()), (rule, cause), "{found}");
    }
}

#[test]
fn a_desync_report_names_the_rank_that_is_not_in_the_call() {
    let report = |others: &str| {
        format!(
            "error: x failed\n  caused by: all_reduce on rank 0 timed out after 1.00 s: {others}; this rank was in call 4, all_reduce of [4]: [x.cc:1] Timed out waiting 1000ms for recv operation to complete"
        )
    };
    let rank = |others: &str| verdict(&[ended(0, 1, 3_000, &report(others))], &evidence());
    let outside = rank("rank 1 was outside any collective, after 3 finished calls");
    assert_eq!(outside.rank, 1);
    assert_eq!(
        outside.cause,
        "rank 1 was outside any collective, after 3 finished calls while others were in call 4, all_reduce of [4]"
    );
    assert_eq!(rank("rank 2 was in the same call; rank 1 was joining group 2 of ranks 0, 1").rank, 1);
    assert_eq!(rank("rank 1 was in call 4, broadcast of [4]").rank, 1);
    assert_eq!(rank("rank 1 did not answer within 3 s: it has exited, was killed").rank, 1);
    // A rank in another call may itself wait for the one that is in none.
    assert_eq!(
        rank("rank 1 was in call 4, broadcast of [4]; rank 2 has left the group after 3 finished calls").rank,
        2
    );
    // Ranks that all failed in the same way name nobody.
    assert_eq!(rank("rank 1 failed in irecv [1] from rank 0 (Timeout)").rank, 0);
}

#[test]
fn another_nodes_verdict_is_taken_for_a_consequence_only() {
    let elsewhere = Some(Elsewhere { rank: 5, host: "node1".into(), message: "ValueError: no".into() });
    let evidence = Evidence { elsewhere, ..evidence() };
    let found = verdict(&[ended(0, 1, 3_000, PEER)], &evidence);
    assert_eq!((found.rank, found.host.as_deref(), found.cause.as_str()), (5, Some("node1"), "ValueError: no"));
    assert_eq!(verdict(&[ended(0, 1, 3_000, TRACEBACK)], &evidence).rank, 0);
}

#[test]
fn another_node_learns_whether_the_rank_is_at_fault_or_only_noticed_it() {
    for (text, class) in [(TRACEBACK, Class::Cause), (PEER, Class::PeerGone)] {
        let own = alone(1, text);
        let other = Verdict::from(&Elsewhere { rank: own.rank, host: "node0".into(), message: own.message() });
        assert_eq!((other.rank, &other.cause, other.class), (1, &own.cause, class), "{other}");
    }
    let silent = Verdict::from(&Elsewhere { rank: 1, host: "node0".into(), message: String::new() });
    assert_eq!(silent.class, Class::Unknown);
}

/// What a program handled, at its outermost level.
const HANDLED: &str = "Traceback (most recent call last):\n  File \"t.py\", line 2, in <module>\n    f()\nOSError: [Errno 28] No space left on device: '/x/1'\n";

#[test]
fn what_the_program_survived_is_only_mentioned() {
    let oom = "CUDA out of memory. Tried to allocate 2.00 GiB; halving the batch and going on\n";
    let config = "config error: no data\n";
    for (exitcode, text, rule) in [
        (1, format!("{oom}Connection reset by peer, trying again\n{TRACEBACK}"), "exception"),
        (3, format!("{oom}{config}"), "exit-with-message"),
        (3, oom.to_owned(), "unknown"),
        (3, format!("{HANDLED}{config}"), "exit-with-message"),
        (1, format!("{HANDLED}starting again\n{config}"), "exit-with-message"),
        (1, format!("{HANDLED}{}", "epoch 1\n".repeat(40)), "exit-with-message"),
        // It ended the program, or it is all that is known.
        (1, HANDLED.to_owned(), "disk-full"),
        (3, HANDLED.to_owned(), "exit-with-message"),
        (-11, format!("{oom}{HANDLED}"), "segmentation-fault"),
        (-6, format!("{HANDLED}going on\n"), "aborted"),
        (-9, format!("{HANDLED}{oom}"), "killed"),
        (1, format!("{TRACEBACK}\nException ignored in: <function f>\n{HANDLED}"), "exception"),
        (1, format!("Exception in thread Thread-1 (f):\n{HANDLED}"), "unknown"),
        (120, format!("Exception ignored in: <_io.TextIOWrapper name='<stdout>'>\n{HANDLED}"), "disk-full"),
    ] {
        assert_eq!(alone(exitcode, &text).rule, rule, "{exitcode}: {text}");
    }
    let found = alone(3, &format!("{HANDLED}{config}"));
    assert_eq!(found.cause, "it ended itself with exit code 3 after \"config error: no data\"");
    assert!(
        found.how_known.contains("before it, the program printed \"OSError: [Errno 28] No space left on device"),
        "{found}"
    );
    // A lost rank is no cause of its own, however the program ends.
    assert_eq!(
        alone(3, &format!("Traceback (most recent call last):\n  File \"t.py\", line 2, in f\n{PEER}")).rule,
        "peer-gone"
    );
}

#[test]
fn an_exception_that_was_raised_while_another_was_handled_does_not_take_its_place() {
    let chain = |first: &str, second: &str| {
        format!(
            "Traceback (most recent call last):\n  File \"t.py\", line 2, in f\n{first}\n\nDuring handling of the above exception, \
             another exception occurred:\n\nTraceback (most recent call last):\n  File \"t.py\", line 9, in <module>\n{second}\n"
        )
    };
    let missing = "FileNotFoundError: [Errno 2] No such file or directory: '/m'";
    let found = alone(1, &chain("RuntimeError: boom", missing));
    assert_eq!(found.cause, format!("RuntimeError: boom (t.py:2 in f); while it was handled, {missing} (t.py:9)"));
    let found = alone(1, &chain(missing, "NameError: name 'x' is not defined"));
    assert_eq!(found.rule, "file-missing");
    assert!(
        found.how_known.ends_with("at t.py:2 in f") && found.cause.contains("; while it was handled, NameError"),
        "{found}"
    );
    // Two known causes: the verdict does not choose.
    assert_eq!(alone(1, &chain(missing, "RuntimeError: CUDA out of memory.")).rule, "exception");
    assert_eq!(alone(1, &chain(PEER, missing)).rule, "peer-gone");
    let recorder = chain("RuntimeError: boom", missing).replace(
        "line 9, in <module>",
        "line 9, in <module>\n  File \"/e/site-packages/torch/distributed/elastic/multiprocessing/errors/error_handler.py\", line 7, in x",
    );
    assert_eq!(alone(1, &recorder).cause, "RuntimeError: boom (t.py:2 in f)");
}

#[test]
fn an_error_file_of_another_end_is_only_mentioned() {
    let dir = tempfile::tempdir().unwrap();
    let python = r#"{"message": {"message": "ValueError: no", "extraInfo": {"py_callstack": "Traceback (most recent call last):\n  File \"x.py\", line 2, in f\nValueError: no\n", "timestamp": "1763635203"}}}"#;
    let rule = |exitcode: i32, text: &str| {
        let tail = text.lines().map(str::to_owned).collect();
        let failure = with_file(&dir, Death { tail, ..death(1, exitcode, 3_500) }, python);
        verdict(&[failure], &evidence())
    };
    let own = "Traceback (most recent call last):\n  File \"x.py\", line 2, in f\nValueError: no\n";
    for (exitcode, text) in [(1, ""), (1, own), (3, own), (-6, "")] {
        assert_eq!(rule(exitcode, text).how_known, "its error file", "{exitcode}: {text}");
    }
    for (exitcode, text, name) in [
        (3, "config error: no data", "exit-with-message"),
        (1, "config error: no data", "exit-with-message"),
        (1, HANDLED, "disk-full"),
        (-9, "", "killed"),
        (-11, own, "segmentation-fault"),
    ] {
        let found = rule(exitcode, text);
        assert_eq!(found.rule, name, "{found}");
        assert!(found.how_known.ends_with("; its error file has \"ValueError: no (x.py:2 in f)\""), "{found}");
    }
}

#[test]
fn output_that_was_held_back_leaves_a_doubt() {
    let text = HANDLED.lines().map(|line| format!("[rank1]: {line}\n")).collect::<String>() + "epoch 1\nepoch 2\n";
    let failure = |together| {
        let failure = ended(1, 1, 3_000, &text);
        verdict(&[Failure { death: Death { together, ..failure.death }, ..failure }], &evidence())
    };
    let cause = "it ended itself with exit code 1 after \"epoch 2\"";
    assert_eq!(failure(false).cause, cause);
    assert!(failure(true).cause.starts_with(&format!("{cause}, or by the exception further up: OSError: [Errno 28]")));
}

#[test]
fn the_last_words_are_those_of_standard_output_if_only_warnings_are_on_standard_error() {
    let failure = ended(1, 3, 3_000, "WARNING: No module named 'apex'; using the plain optimizer");
    let stdout = vec!["epoch 1".to_owned(), "no data".to_owned()];
    let found = verdict(&[Failure { death: Death { stdout, ..failure.death }, ..failure }], &evidence());
    assert_eq!(found.cause, "it ended itself with exit code 3 after \"no data\"");
}

#[test]
fn says_unknown_where_there_is_no_evidence() {
    let found = alone(3, "");
    assert_eq!((found.rule, found.class), ("unknown", Class::Unknown));
    assert!(found.to_string().contains("unknown: it left no error and no output (evidence: exit code 3)"), "{found}");
}

#[test]
fn says_where_the_output_is_that_was_not_read() {
    let silent = ended(1, 3, 3_000, "");
    let unread = Failure { death: Death { unread: true, ..silent.death }, ..silent };
    let found = verdict(&[unread], &evidence());
    assert!(found.cause.contains("what it printed is on the terminal alone (--tee=3 keeps a copy)"), "{found}");
}

#[test]
fn tells_other_nodes_the_exit_code_where_nothing_else_is_known() {
    assert_eq!(alone(3, "").message(), "unknown: it left no error and no output (exit code 3)");
    assert_eq!(alone(1, TRACEBACK).message(), "ValueError: no such layer (train.py:9 in step)");
}

#[test]
fn is_one_line_whatever_others_wrote() {
    let hostile = "\n\nx\r\n\u{1b}[2Jy\u{202e}\u{2028}z";
    let text = format!("cannot open file '{hostile}': {}", hostile.repeat(10_000));
    let dir = tempfile::tempdir().unwrap();
    let file = serde_json::json!({"message": {"message": text, "extraInfo": {"py_callstack": text}}});
    let recorded = with_file(&dir, death(1, 1, 3_000), file.to_string());
    let not_started = Death { not_started: Some(text.clone()), ..death(1, 127, 3_000) };
    let lost = Elsewhere { rank: 0, host: text.clone(), message: text.clone() };
    let found = [
        verdict(&[recorded], &evidence()).to_string(),
        verdict(&[Failure::of(not_started, &text)], &evidence()).to_string(),
        Verdict::from(&lost).to_string(),
        LaunchFailure::new(text.clone()).verdict(&text).to_string(),
        LaunchFailure::noticed(text.clone()).verdict(&text).to_string(),
    ];
    for found in found {
        assert!(!found.chars().any(|c| c.is_control() || "\u{202e}\u{2028}".contains(c)), "{found:?}");
        assert!(found.chars().count() < 10_000 && found.contains("cannot open file"), "{found:?}");
    }
}

#[test]
fn a_cause_is_the_first_line_that_is_not_blank() {
    let dir = tempfile::tempdir().unwrap();
    let failure = with_file(&dir, death(1, 1, 3_000), r#"{"message": "\n  \nno such layer\nmore"}"#);
    assert_eq!(verdict(&[failure], &evidence()).cause, "no such layer");
}

#[test]
fn survives_a_text_that_is_cut_anywhere() {
    for rule in all() {
        let Example { exitcode, output: text, .. } = rule.wrong;
        for (end, _) in text.char_indices() {
            alone(exitcode, &text[..end]);
        }
    }
}

#[test]
fn names_the_sender_of_sigkill_or_who_is_excluded() {
    let killed = |evidence: Evidence| verdict(&[ended(1, -9, 3_000, "")], &evidence);
    let job_end = Some(at(3_000) + Duration::from_secs(60));
    let found = killed(Evidence { job_end, oom_daemons: vec!["earlyoom (pid 7)".into()], ..evidence() });
    assert_eq!(
        found.how_known,
        "SIGKILL; whether it was the OOM killer cannot be known here: no cgroup counts its kills; not this launcher: it had sent no \
         signal; not the job's time limit: 60 s were left; perhaps earlyoom (pid 7), which kills when memory gets short"
    );
    let found = killed(Evidence { sender: Some("bash (pid 77) of user 1000".into()), ..evidence() });
    assert!(found.cause.starts_with("bash (pid 77) of user 1000 killed it (SIGKILL ended pid "), "{found}");
    assert!(found.how_known.starts_with("SIGKILL, and the audit log; "), "{found}");
}

#[test]
fn only_a_wait_until_a_deadline_counts_as_a_wait_in_vain() {
    let waited = |text: &str| has_waited(&ended(0, 1, 3_000, text));
    let desync = |what: &str| {
        format!(
            "error: all_reduce [4] on rank 0 {what} after 1.00 s: rank 2 was outside any collective, after 3 finished calls; this rank was in call 4, all_reduce of [4]"
        )
    };
    assert!(waited("RuntimeError: [../gloo/x.cc:78] Timed out waiting 1000ms for recv operation to complete"));
    assert!(waited("RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 2000 ms"));
    assert!(waited(&desync("timed out")));
    assert!(!waited(&desync("lost a peer")) && !waited(PEER) && !waited(TRACEBACK));
}

#[test]
fn another_nodes_wait_concerns_the_rank_that_it_names_or_everybody() {
    let concerns = |message: &str| {
        let other = Elsewhere { rank: 0, host: "n0".into(), message: message.into() };
        other.concerns(&[2, 3])
    };
    assert!(concerns("it only noticed the failure: a rank did not take part in a collective in time (1000 ms)"));
    assert!(concerns("rank 2: rank 2 was outside any collective while others were in call 4"));
    assert!(!concerns("rank 1: rank 1 was outside any collective while others were in call 4"));
    assert!(!concerns("it only noticed the failure: it lost a connection") && !concerns("ValueError: no such layer"));
}
