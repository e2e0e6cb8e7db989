//! How workers begin: their session, their environment, their input, and programs that cannot be started.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::scene::Scene;

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("starts::a_worker_leads_a_session_of_its_own", a_worker_leads_a_session_of_its_own),
    (
        "starts::a_worker_reads_what_it_was_given_and_knows_its_agent",
        a_worker_reads_what_it_was_given_and_knows_its_agent,
    ),
    (
        "starts::a_program_that_cannot_be_started_is_told_with_its_reason",
        a_program_that_cannot_be_started_is_told_with_its_reason,
    ),
    ("starts::a_program_that_exits_with_127_was_started", a_program_that_exits_with_127_was_started),
    ("starts::the_agents_loop_survives_a_hundred_workers", the_agents_loop_survives_a_hundred_workers),
];

fn a_worker_leads_a_session_of_its_own() {
    let mut scene = Scene::begin();
    // Fields of /proc/PID/stat: pid, name, state, parent, group, session.
    let pid = scene.start(0, "read p n s parent group session rest < /proc/self/stat; echo $$ $group $session");
    scene.hear(&format!("{pid} {pid} {pid}"));
    assert_eq!(scene.ask("next"), "died 0 0 exit code 0");
    assert_eq!(scene.ask("sweep"), "swept 0 left 0");
    scene.close();
}

fn a_worker_reads_what_it_was_given_and_knows_its_agent() {
    let mut scene = Scene::begin_with(|command| command.env("LOCKSTEP_AGENT", "outer"));
    scene.start(
        0,
        "readlink /proc/$$/fd/0; echo ${LOCKSTEP_AGENT%:*}; ls -l /proc/$$/fd | grep -c -e socket: -e anon_inode:; exit 0",
    );
    scene.hear("/dev/null");
    scene.hear("outer");
    // None of the agent's descriptors.
    scene.hear("0");
    assert_eq!(scene.ask("next"), "died 0 0 exit code 0");
    scene.close();
}

fn a_program_that_cannot_be_started_is_told_with_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script");
    fs::write(&script, "#!/bin/sh\n").unwrap();
    let script = script.to_str().unwrap();
    let mut scene = Scene::begin();
    scene.ask(&format!("exec 0 {script}"));
    assert_eq!(
        scene.ask("next"),
        format!("died 0 127 not started: {script} is not executable: run `chmod +x {script}`")
    );
    scene.ask("exec 1 no-such-program --flag");
    assert!(
        scene.ask("next").starts_with("died 1 127 not started: cannot find the program no-such-program in the folders")
    );
    fs::set_permissions(script, fs::Permissions::from_mode(0o755)).unwrap();
    scene.ask(&format!("exec 2 {script}"));
    assert_eq!(scene.ask("next"), "died 2 0 exit code 0");
    scene.close();
}

fn a_program_that_exits_with_127_was_started() {
    let mut scene = Scene::begin();
    scene.start(0, "exit 127");
    assert_eq!(scene.ask("next"), "died 0 127 exit code 127");
    scene.close();
}

fn the_agents_loop_survives_a_hundred_workers() {
    let mut scene = Scene::begin();
    for index in 0..100 {
        scene.start(index, "exit 3");
    }
    let mut told: Vec<String> = (0..100).map(|_| scene.ask("next")).collect();
    told.sort();
    told.dedup();
    assert!(told.len() == 100 && told.iter().all(|line| line.ends_with(" 3 exit code 3")), "{told:?}");
    assert_eq!(scene.ask("sweep"), "swept 0 left 0");
    scene.close();
}
