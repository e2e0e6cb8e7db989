//! Children that the command did not start: a shell that replaces itself by `lockstep` with `exec` leaves its own, and
//! process 1 of a container gets every orphan. They are left alone, and reaped once they have ended.

use std::process::Command;

use crate::run::site::Site;
use crate::running::{Ended, Running, lockstep};

/// Runs a shell that does `before` and then becomes the command with these words, in the test's folder.
fn becoming(site: &Site, before: &str, words: &str) -> Ended {
    let mut shell = Command::new("bash");
    site.prepare(&mut shell);
    shell.args(["-c", &format!("{before}\nexec {} run {words}", lockstep())]);
    Running::start(shell).ended()
}

fn alive(site: &Site, words: &str) -> usize {
    site.processes().iter().filter(|(_, command)| command.contains(words)).count()
}

#[test]
fn children_from_before_the_command_live_on() {
    let site = Site::new();
    let before = "setsid sh -c 'echo > begun; exec sleep 1000 >/dev/null 2>&1' &
        until [ -e begun ]; do sleep 0.01; done";
    for (words, code) in [("true", 0), ("--max-restarts=1 false", 1)] {
        becoming(&site, before, &format!("--standalone {words}")).code(code);
    }
    assert_eq!(alive(&site, "sleep 1000"), 2);
}

#[test]
fn orphans_of_such_children_live_on_and_those_of_workers_do_not() {
    let site = Site::new();
    // Once the workers run, it starts a daemon, which the command inherits as an orphan.
    let before =
        "( until [ -e go ]; do sleep 0.01; done; setsid sh -c 'echo > late; exec sleep 1000' >/dev/null 2>&1 & ) &";
    let worker = "setsid sleep 1001 >/dev/null 2>&1 & echo > go; until [ -e late ]; do sleep 0.01; done";
    site.file("worker.sh", worker);
    becoming(&site, before, "--standalone sh worker.sh").code(0);
    assert_eq!((alive(&site, "sleep 1000"), alive(&site, "sleep 1001")), (1, 0));
}

#[test]
fn children_from_before_the_command_are_reaped_when_they_have_ended() {
    let site = Site::new();
    // The first has ended before the command starts; the second ends while a worker runs.
    let before = "true & echo $! > first; sh -c 'until [ -e go ]; do sleep 0.01; done' & echo $! > second";
    let worker = "echo > go; for child in $(cat first second); do while [ -e /proc/$child ]; do sleep 0.01; done; done";
    site.file("worker.sh", worker);
    becoming(&site, before, "--standalone sh worker.sh").code(0);
    site.assert_no_process();
}
