//! How workers end: the order in which deaths are reported, and workers that ignore SIGTERM.

use rustix::process::Signal;

use crate::agent::{AgentProcess, lives, signal, state, until, until_gone};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("ends::deaths_are_reported_in_their_order", deaths_are_reported_in_their_order),
    ("ends::each_end_is_reported_with_its_status", each_end_is_reported_with_its_status),
    ("ends::a_worker_that_ignores_sigterm_is_killed", a_worker_that_ignores_sigterm_is_killed),
    ("ends::a_stopped_worker_receives_sigterm_and_sigkill", a_stopped_worker_receives_sigterm_and_sigkill),
    ("ends::the_whole_group_receives_sigterm", the_whole_group_receives_sigterm),
    (
        "ends::a_program_whose_shell_has_just_died_keeps_its_children",
        a_program_whose_shell_has_just_died_keeps_its_children,
    ),
];

fn deaths_are_reported_in_their_order() {
    let mut agent = AgentProcess::launch();
    for order in [[0, 1], [1, 0]] {
        let pids = [agent.start(0, "exec sleep 1000"), agent.start(1, "exec sleep 1000")];
        // The agent does not read while they die, so it finds both deaths at once.
        agent.ask("block");
        for victim in order {
            signal(pids[victim], Signal::KILL);
            until("a death", || state(pids[victim]) == Some('Z'));
        }
        for victim in order {
            assert_eq!(agent.ask("next"), format!("died {victim} -9 SIGKILL"));
        }
        assert_eq!(agent.ask("sweep"), "swept 0 left 0");
    }
    agent.close();
}

fn each_end_is_reported_with_its_status() {
    let mut agent = AgentProcess::launch();
    for (script, status) in [
        ("exit 0", "0 exit code 0"),
        ("exit 255", "255 exit code 255"),
        ("kill -SEGV $$", "-11 SIGSEGV"),
        ("kill -ABRT $$", "-6 SIGABRT"),
        ("kill -KILL $$", "-9 SIGKILL"),
        ("kill -PIPE $$", "-13 SIGPIPE"),
    ] {
        agent.start(5, script);
        assert_eq!(agent.ask("next"), format!("died 5 {status}"));
    }
    agent.close();
}

fn a_worker_that_ignores_sigterm_is_killed() {
    let mut agent = AgentProcess::launch();
    let script = "trap '' TERM; echo $$; while :; do sleep 1000; done";
    let (pid, _) = agent.start_family(0, script);
    let (other, _) = agent.start_family(1, "trap 'exit 4' TERM; echo $$; while :; do sleep 1000 & wait; done");
    agent.ask("end");
    assert_eq!(agent.ask("next"), "died 1 4 exit code 4");
    assert!(lives(pid));
    agent.ask("kill");
    assert_eq!(agent.ask("next"), "died 0 -9 SIGKILL");
    agent.ask("sweep");
    until_gone(&[pid, other]);
    agent.close();
}

fn a_stopped_worker_receives_sigterm_and_sigkill() {
    let mut agent = AgentProcess::launch();
    let (first, _) = agent.start_family(0, "echo $$; exec sleep 1000");
    signal(first, Signal::STOP);
    until("a stop", || state(first) == Some('T'));
    agent.ask("end");
    assert_eq!(agent.ask("next"), "died 0 -15 SIGTERM");
    let (second, _) = agent.start_family(0, "echo $$; exec sleep 1000");
    signal(second, Signal::STOP);
    until("a stop", || state(second) == Some('T'));
    agent.ask("kill");
    assert_eq!(agent.ask("next"), "died 0 -9 SIGKILL");
    agent.close();
}

fn the_whole_group_receives_sigterm() {
    let mut agent = AgentProcess::launch();
    let child = "sh -c \"trap 'exit 0' TERM; echo \\$\\$; while :; do sleep 1000 & wait; done\"";
    let (_, family) = agent.start_family(0, &format!("{child} & wait; exit 9"));
    agent.ask("end");
    assert_eq!(agent.ask("next"), "died 0 -15 SIGTERM");
    until_gone(&family);
    agent.ask("sweep");
    agent.close();
}

/// The shell's death has not been reported when the program that it leaves behind is asked to end.
fn a_program_whose_shell_has_just_died_keeps_its_children() {
    let folder = tempfile::tempdir().unwrap();
    // A shell under another name is a program.
    let program = folder.path().join("program");
    std::fs::copy("/bin/sh", &program).unwrap();
    let mut agent = AgentProcess::launch();
    let script = "trap \"echo saved\" TERM; sleep 1000 & echo $!; while :; do wait; done";
    let shell = agent.start(0, &format!("{} -c '{script}'; exit $?", program.display()));
    let child = agent.printed().parse().unwrap();
    signal(shell, Signal::TERM);
    until("a death", || state(shell) == Some('Z'));
    agent.ask("end");
    agent.expect_printed("saved");
    assert!(lives(child));
    assert_eq!(agent.ask("next"), "died 0 -15 SIGTERM");
    agent.ask("sweep");
    until_gone(&[child]);
    agent.close();
}
