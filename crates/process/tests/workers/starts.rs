//! How workers start: their session, their environment, their input, and programs that cannot be started.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use lockstep_process::Signal;
use lockstep_process::proc::Status;

use crate::agent::AgentProcess;

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
    let mut agent = AgentProcess::launch();
    agent.start(0, "while read n mask; do case $n in SigBlk:|SigIgn:) echo $mask;; esac; done < /proc/self/status");
    let status = Status::of(agent.pid()).unwrap();
    let mask = |name| u64::from_str_radix(status.field(name).unwrap(), 16).unwrap();
    let pipe = 1 << (Signal::PIPE.as_raw() - 1);
    assert_eq!(mask("SigIgn") & pipe, pipe, "Rust's runtime ignores SIGPIPE in the agent");
    agent.expect_printed(&format!("{:016x}", mask("SigBlk")));
    agent.expect_printed(&format!("{:016x}", mask("SigIgn") & !pipe));
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

/// The agent reaps every child that has ended, also one that another thread has just started and does not hold yet.
fn a_command_that_ends_at_once_is_held_before_it_is_reaped() {
    let mut agent = AgentProcess::launch();
    assert_eq!(agent.ask("commands 300"), "started 300");
    agent.close();
}
