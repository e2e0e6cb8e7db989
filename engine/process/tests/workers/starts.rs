//! How workers start and end: their session, their environment, their input, programs that cannot be started, the order in which deaths are
//! reported, and workers that ignore SIGTERM.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use lockstep_process::Signal;
use lockstep_process::proc::Status;

use crate::agent::{AgentProcess, lives, signal, state, until, until_gone};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("starts::a_worker_leads_a_session_of_its_own", a_worker_leads_a_session_of_its_own),
    ("starts::a_worker_gets_its_input_and_the_id_of_its_agent", a_worker_gets_its_input_and_the_id_of_its_agent),
    ("starts::a_worker_begins_with_the_signals_of_a_new_program", a_worker_begins_with_the_signals_of_a_new_program),
    (
        "starts::a_program_that_cannot_be_started_is_reported_with_its_reason",
        a_program_that_cannot_be_started_is_reported_with_its_reason,
    ),
    ("starts::a_program_that_exits_with_127_was_started", a_program_that_exits_with_127_was_started),
    ("starts::an_agent_reports_the_ends_of_a_hundred_workers", an_agent_reports_the_ends_of_a_hundred_workers),
    (
        "starts::a_command_that_ends_at_once_is_held_before_it_is_reaped",
        a_command_that_ends_at_once_is_held_before_it_is_reaped,
    ),
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

fn a_worker_leads_a_session_of_its_own() {
    let mut agent = AgentProcess::launch();
    // Fields of /proc/PID/stat: pid, name, state, parent, group, session.
    let pid = agent.start(0, "read p n s parent group session rest < /proc/self/stat; echo $$ $group $session");
    agent.expect_printed(&format!("{pid} {pid} {pid}"));
    assert_eq!(agent.ask("next"), "died 0 0 exit code 0");
    assert_eq!(agent.ask("sweep"), "swept 0 left 0");
    agent.close();
}

fn a_worker_gets_its_input_and_the_id_of_its_agent() {
    let mut agent = AgentProcess::launch_with(|command| command.env("LOCKSTEP_AGENT", "outer"));
    agent.start(
        0,
        "readlink /proc/$$/fd/0; echo ${LOCKSTEP_AGENT%:*}; ls -l /proc/$$/fd | grep -c -e socket: -e anon_inode:; exit 0",
    );
    agent.expect_printed("/dev/null");
    agent.expect_printed("outer");
    // It inherits none of the agent's descriptors.
    agent.expect_printed("0");
    assert_eq!(agent.ask("next"), "died 0 0 exit code 0");
    agent.close();
}

fn a_program_that_cannot_be_started_is_reported_with_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script");
    fs::write(&script, "#!/bin/sh\n").unwrap();
    let script = script.to_str().unwrap();
    let mut agent = AgentProcess::launch();
    agent.ask(&format!("exec 0 {script}"));
    assert_eq!(
        agent.ask("next"),
        format!("died 0 127 not started: {script} is not executable: run `chmod +x {script}`")
    );
    agent.ask("exec 1 no-such-program --flag");
    assert!(
        agent.ask("next").starts_with("died 1 127 not started: cannot find the program no-such-program in the folders")
    );
    fs::set_permissions(script, fs::Permissions::from_mode(0o755)).unwrap();
    agent.ask(&format!("exec 2 {script}"));
    assert_eq!(agent.ask("next"), "died 2 0 exit code 0");
    agent.close();
}

/// Handlers end with exec in any case. What the agent ignores or blocks does not.
fn a_worker_begins_with_the_signals_of_a_new_program() {
    // As a program in Python that replaces itself by the agent.
    let mut agent = AgentProcess::launch_with(|command| {
        let mut shell = Command::new("sh");
        shell.args(["-c", r#"trap '' XFSZ; exec "$0" "$@""#]).arg(command.get_program()).args(command.get_args());
        *command = shell;
        command
    });
    agent.start(0, "while read n mask; do case $n in SigBlk:|SigIgn:) echo $mask;; esac; done < /proc/self/status");
    let status = Status::of(agent.pid()).unwrap();
    let mask = |name| u64::from_str_radix(status.field(name).unwrap(), 16).unwrap();
    let theirs: u64 = [Signal::PIPE, Signal::XFSZ].iter().map(|signal| 1 << (signal.as_raw() - 1)).sum();
    assert_eq!(mask("SigIgn") & theirs, theirs, "Rust's runtime ignores SIGPIPE in the agent");
    agent.expect_printed(&format!("{:016x}", mask("SigBlk")));
    agent.expect_printed(&format!("{:016x}", mask("SigIgn") & !theirs));
    assert_eq!(agent.ask("next"), "died 0 0 exit code 0");
    agent.close();
}

fn a_program_that_exits_with_127_was_started() {
    let mut agent = AgentProcess::launch();
    agent.start(0, "exit 127");
    assert_eq!(agent.ask("next"), "died 0 127 exit code 127");
    agent.close();
}

fn an_agent_reports_the_ends_of_a_hundred_workers() {
    let mut agent = AgentProcess::launch();
    for index in 0..100 {
        agent.start(index, "exit 3");
    }
    let mut reported: Vec<String> = (0..100).map(|_| agent.ask("next")).collect();
    reported.sort();
    reported.dedup();
    assert!(reported.len() == 100 && reported.iter().all(|line| line.ends_with(" 3 exit code 3")), "{reported:?}");
    assert_eq!(agent.ask("sweep"), "swept 0 left 0");
    agent.close();
}

/// The agent reaps every child that has ended, even one that another thread has just started and does not hold yet.
fn a_command_that_ends_at_once_is_held_before_it_is_reaped() {
    let mut agent = AgentProcess::launch();
    assert_eq!(agent.ask("commands 300"), "started 300");
    agent.close();
}

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
    // A shell under another name counts as a program, not as a shell.
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
